"""Stores small models of this release, with what they answer, for test_every_saved_release.py.

Run once for each release, from the repository: `python tests/support/save_release.py`, and commit the new folder.
"""

from pathlib import Path

import cases
import keras
import numpy as np

import keras_attention
from keras_attention import mechanisms
from keras_attention.layers import EncoderBlock, MultiHeadAttention, PositionalEncoding, TokenEmbedding
from keras_attention.models import Transformer

FOLDER = Path(__file__).parents[1] / "releases"


def attention_model():
    """One attention layer of each mechanism on one input; their outputs side by side."""
    x = keras.Input((7, 8), name="x")
    outputs = []
    for case in cases.CASES:
        options = {"d_model": 4, "num_heads": 2, "head_dim": 2, "name": case.name, **case.layer}
        layer = MultiHeadAttention(mechanism=mechanisms.class_of(case.name)(**case.options), **options)
        causal = {"use_causal_mask": True} if layer.mechanism.supports.causal else {}
        outputs.append(layer(x, **causal))
    return keras.Model(x, keras.layers.Concatenate(name="side_by_side")(outputs)), {
        "x": np.random.default_rng(0).normal(size=(2, 7, 8)).astype("float32")
    }


def encoder_model():
    """Embedding, learned positions and two kinds of block, under a half-precision policy of their own."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    options = {"dtype": "mixed_bfloat16"}
    x = PositionalEncoding(9, 8, beyond="clip", **options)(TokenEmbedding(11, 8, **options)(ids))
    x = EncoderBlock(8, 2, 12, norm="post", residual="gated", activation="gelu", **options)(x)
    x = EncoderBlock(8, 4, 12, num_kv_heads=2, dropout_rate=0.1, seed=1, **options)(x)
    return keras.Model(ids, x), {"ids": np.array([[3, 4, 5, 6], [7, 8, 0, 0]], "int32")}


def translation_model():
    model = Transformer(
        13, 11, d_model=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=1, mlp_dim=12, max_length=9
    )
    model.build()
    return model, {"source": np.array([[3, 4, 5], [6, 7, 0]], "int32"), "target": np.array([[2, 4], [2, 5]], "int32")}


MODELS = {"attention": attention_model, "encoder": encoder_model, "translation": translation_model}


def call(model, inputs):
    """The model's answer as float32."""
    out = model(inputs if len(inputs) > 1 else next(iter(inputs.values())))
    return keras.ops.convert_to_numpy(keras.ops.cast(out, "float32"))


def main():
    folder = FOLDER / keras_attention.__version__
    folder.mkdir(parents=True)
    for name, make in MODELS.items():
        keras.utils.set_random_seed(1)
        model, inputs = make()
        model.save(folder / f"{name}.keras")
        np.savez_compressed(folder / f"{name}.npz", output=call(model, inputs), **inputs)
    print(f"Wrote {folder}")


if __name__ == "__main__":
    main()
