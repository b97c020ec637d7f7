"""Case 95: no two masks of one training run share a seed, over steps, masks of one call, layers and mechanisms."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from mechanism_layers import WIDTH, every_mechanism, new_layer, sequence, supports

from keras_attention import layers
from keras_attention.layers import drop_path
from keras_attention.models import DecoderLM, TextEncoder, Transformer, ViT
from keras_attention.ops.dense import dropout_bits

STEPS = 5
MASKS = {"axial": 3, "longformer": 2, "bigbird": 2}  # of one call; 1 elsewhere


@pytest.fixture
def drawn(monkeypatch):
    """The seeds of all masks that are made, read in eager code (of compiled functions too)."""
    seeds, row_keys = [], dropout_bits.row_keys

    def recorded(seed, heads, rows):
        seeds.append(tuple(int(n) % 2**32 for n in np.asarray(seed)))
        return row_keys(seed, heads, rows)

    monkeypatch.setattr(dropout_bits, "row_keys", recorded)
    tf.config.run_functions_eagerly(True)
    yield seeds
    tf.config.run_functions_eagerly(False)


@every_mechanism
def test_masks_of_layers_and_steps(rng, case, drawn):
    if not supports(case).dropout:
        pytest.skip("drops nothing, as declared")
    pair = [new_layer(case, dropout_rate=0.3, seed=seed) for seed in (3, 4)]
    x = sequence(rng, case)
    seen = set()
    for _ in range(STEPS):
        for layer in pair:
            drawn.clear()
            layer(x, training=True)
            own = set(drawn)  # tiles make one mask, part by part
            assert len(own) == MASKS.get(case.name, 1)
            assert case.name == "blockwise" or len(drawn) == len(own)
            assert not own & seen
            seen |= own


RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3, "seed": 7}
IDS = np.array([[5, 6, 4, 3], [3, 4, 0, 0]])
IMAGES = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype("float32")
X = np.random.default_rng(2).normal(size=(2, 5, WIDTH + 3)).astype("float32")
MODELS = {
    "encoder block": lambda: (layers.EncoderBlock(12, 2, 8, drop_path_rate=0.4, **RATES), (X,)),
    "decoder block": lambda: (layers.DecoderBlock(12, 2, 8, drop_path_rate=0.4, **RATES), (X, X)),
    "transformer": lambda: (
        Transformer(9, 9, d_model=8, num_heads=2, mlp_dim=8, num_encoder_layers=2, num_decoder_layers=2, **RATES),
        ({"source": IDS, "target": IDS},),
    ),
    "language model": lambda: (DecoderLM(9, d_model=8, num_heads=2, mlp_dim=8, num_layers=2, **RATES), (IDS,)),
    "text encoder": lambda: (
        TextEncoder(9, d_model=8, num_heads=2, mlp_dim=8, num_layers=2, eos_id=3, max_length=4, **RATES),
        (IDS,),
    ),
    "vit": lambda: (
        ViT(8, 4, 3, d_model=8, num_heads=2, mlp_dim=8, num_layers=2, drop_path_rate=0.4, **RATES),
        (IMAGES,),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_masks_of_a_model(name, drawn, monkeypatch):
    stateless_dropout = tf.nn.experimental.stateless_dropout

    def recorded(x, rate, seed):
        drawn.append(tuple(int(n) % 2**32 for n in np.asarray(seed)))
        return stateless_dropout(x, rate=rate, seed=seed)

    monkeypatch.setattr(drop_path.tf.nn.experimental, "stateless_dropout", recorded)
    keras.utils.set_random_seed(0)
    model, inputs = MODELS[name]()
    for _ in range(STEPS):
        model(*inputs, training=True)
    assert len(drawn) >= 3 * STEPS and len(drawn) % STEPS == 0
    assert len(set(drawn)) == len(drawn)
