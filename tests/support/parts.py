"""Every registered layer and model once, small, with each argument off its default: what tests of Keras' contract run.

To add one, append a `Part`; `test_every_part_is_here` compares the list with what is registered, and
`test_every_argument_is_off_its_default` the arguments with the constructor's.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

from keras_attention import layers, models
from keras_attention.layers.dropout import Dropout

RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3}
BLOCK = {
    "mechanism": "softmax",
    "num_kv_heads": 2,
    **RATES,
    "activation": "gelu",
    "gated_mlp": True,
    "norm": "post",
    "residual": "gated",
    "layer_scale": 0.1,
    "drop_path_rate": 0.25,
    "epsilon": 1e-3,
    "remat": True,
    "seed": 3,
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A layer or model.

    Attributes:
        cls: the class.
        arguments: all arguments of its constructor, by name, none at its default.
        shapes: shapes of the inputs of one call.
        make_inputs: what one call takes, as arrays; floating of `shapes` by default.
    """

    cls: type
    arguments: dict
    shapes: tuple = ()
    make_inputs: Callable = None

    @property
    def name(self):
        return self.cls.__name__

    def make(self, **kwargs):
        arguments = {key: value() if callable(value) else value for key, value in self.arguments.items()}
        return self.cls(**arguments, **kwargs)

    def inputs(self, rng):
        if self.make_inputs is not None:
            return self.make_inputs(rng)
        return tuple(rng.normal(size=shape).astype("float32") for shape in self.shapes)


def _ids(*shape, vocab_size=13):
    return lambda rng: (rng.integers(1, vocab_size, shape).astype("int32"),)


def _initializer(scale=0.3):
    return lambda: keras.initializers.RandomNormal(stddev=scale, seed=5)


def _images(rng):
    return (rng.normal(size=(2, 8, 8, 2)).astype("float32"),)


VIT = {
    "num_classes": 5,
    "d_model": 12,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 14,
    "channels": 2,
    "mechanism": "softmax",
    **RATES,
    "drop_path_rate": 0.25,
    "layer_scale": 0.1,
    "activation": "relu",
    "epsilon": 1e-3,
    "remat": True,
    "seed": 3,
}

LAYERS = [
    Part(
        layers.MultiHeadAttention,
        {
            "d_model": 12,
            "num_heads": 4,
            "mechanism": "softmax",
            "num_kv_heads": 2,
            "head_dim": 6,
            "positions": "rotary",
            "dropout_rate": 0.2,
            "temperature": 1.5,
            "use_bias": False,
            "kernel_initializer": _initializer(),
            "bias_initializer": "ones",
            "seed": 3,
        },
        ((2, 5, 8),),
    ),
    Part(
        layers.CrossModalAttention,
        {
            "d_model": 12,
            "num_heads": 4,
            "direction": "both",
            "mechanism": "softmax",
            "num_kv_heads": 2,
            **RATES,
            "gate_initializer": _initializer(),
            "epsilon": 1e-3,
            "seed": 3,
        },
        ((2, 3, 2, 7), (2, 5, 12)),
    ),
    Part(
        layers.EncoderBlock,
        {"d_model": 12, "num_heads": 4, "mlp_dim": 14, "positions": "alibi", **BLOCK},
        ((2, 5, 12),),
    ),
    Part(
        layers.DecoderBlock,
        {"d_model": 12, "num_heads": 4, "mlp_dim": 14, "positions": "relative", "cross_mechanism": "softmax", **BLOCK},
        ((2, 5, 12), (2, 3, 12)),
    ),
    Part(
        layers.WindowBlock,
        {"d_model": 12, "num_heads": 4, "mlp_dim": 14, "window": 3, "shift": 1, "positions": "alibi", **BLOCK},
        ((2, 4, 5, 12),),
    ),
    Part(
        layers.FeedForward,
        {"mlp_dim": 14, "activation": "gelu", "gated": True, "dropout_rate": 0.2, "seed": 3},
        ((2, 5, 8),),
    ),
    Part(layers.DropPath, {"rate": 0.2, "seed": 3}, ((2, 5, 8),)),
    Part(Dropout, {"rate": 0.2, "seed": 3}, ((2, 5, 8),)),
    Part(layers.LayerScale, {"initial_value": 0.3}, ((2, 5, 8),)),
    Part(
        layers.Residual,
        {
            name: BLOCK[name]
            for name in ("norm", "residual", "dropout_rate", "layer_scale", "drop_path_rate", "epsilon", "seed")
        },
        ((2, 5, 8), (2, 5, 8)),
    ),
    Part(
        layers.TokenEmbedding,
        {"vocab_size": 13, "d_model": 8, "pad_id": 2, "scale": False},
        make_inputs=_ids(2, 5),
    ),
    Part(layers.ALiBi, {"num_heads": 3}, make_inputs=lambda rng: (5, 7)),
    Part(
        layers.RelativePositionBias,
        {"num_heads": 3, "num_buckets": 6, "max_distance": 17, "bidirectional": False, "initializer": _initializer()},
        make_inputs=lambda rng: (5, 7),
    ),
    Part(
        layers.RelativePositionBias2D,
        {"window": (2, 3), "num_heads": 3, "num_prefix_tokens": 1, "initializer": _initializer()},
        make_inputs=lambda rng: (),
    ),
    Part(layers.RotaryEmbedding, {"rotary_dim": 4, "base": 500.0, "layout": "interleaved"}, ((2, 3, 5, 6),)),
    Part(
        layers.PositionalEncoding,
        {"max_len": 9, "d_model": 8, "beyond": "clip", "initializer": _initializer()},
        ((2, 5, 8),),
    ),
    Part(layers.SinusoidalEncoding, {}, ((2, 5, 8),)),
    Part(
        layers.GridPositions,
        {"grid": (2, 3), "d_model": 8, "num_prefix_tokens": 1, "initializer": _initializer()},
        ((2, 7, 8),),
    ),
    Part(
        layers.ConvStem,
        {"channels": (4, 6), "strides": (2, 1), "activation": "relu", "epsilon": 1e-3},
        ((2, 5, 6, 3),),
    ),
    Part(layers.PatchEmbedding, {"patch_size": (2, 3), "d_model": 8, "initializer": _initializer()}, ((2, 5, 6, 3),)),
    Part(layers.PatchMerging, {"epsilon": 1e-3}, ((2, 5, 6, 3),)),
]

LANGUAGE = {
    "vocab_size": 13,
    "d_model": 12,
    "num_heads": 4,
    "num_layers": 2,
    "mlp_dim": 14,
    "num_kv_heads": 2,
    **RATES,
    "activation": "relu",
    "gated_mlp": True,
    "max_length": 9,
    "tie_output": False,
    "seed": 3,
}
TEXT = {
    "vocab_size": 13,
    "d_model": 12,
    "num_heads": 4,
    "num_layers": 2,
    "mlp_dim": 14,
    "max_length": 9,
    "eos_id": 4,
    "pad_id": 1,
    "mechanism": "softmax",
    **RATES,
    "activation": "relu",
    "epsilon": 1e-3,
    "remat": True,
    "seed": 3,
}


class Tower(models.TextEncoder):
    """A user's subclass, as CLIP takes one."""


MODELS = [
    Part(
        models.DecoderLM,
        {**LANGUAGE, "mechanism": "softmax", "positions": "learned", "residual_attention_layers": 1, "remat": False},
        make_inputs=_ids(2, 5),
    ),
    Part(
        models.RetNet,
        {**LANGUAGE, "num_kv_heads": 4, "attention_dropout_rate": 0.0, "mechanism": "linear", "positions": "learned"},
        make_inputs=_ids(2, 5),
    ),
    Part(
        models.Transformer,
        {
            "source_vocab_size": 13,
            "target_vocab_size": 13,
            "d_model": 12,
            "num_heads": 4,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "mlp_dim": 14,
            "mechanism": "blockwise",
            "encoder_mechanism": "softmax",
            "decoder_mechanism": "softmax",
            "num_kv_heads": 2,
            **RATES,
            "activation": "gelu",
            "norm": "post",
            "residual": "gated",
            "positions": "learned",
            "residual_attention_layers": 1,
            "max_length": 9,
            "share_embeddings": True,
            "tie_output": False,
            "seed": 3,
        },
        make_inputs=lambda rng: ({"source": _ids(2, 7)(rng)[0], "target": _ids(2, 5)(rng)[0]},),
    ),
    Part(models.TextEncoder, TEXT, make_inputs=_ids(2, 5)),
    Part(
        models.ViT,
        {**VIT, "image_size": (8, 8), "patch_size": (4, 2), "pooling": "token_mean", "embedding_norm": True},
        make_inputs=_images,
    ),
    Part(
        models.HybridViT,
        {
            **VIT,
            "image_size": (8, 8),
            "patch_size": 4,
            "num_conv_layers": 3,
            "pooling": "token",
            "positions": "learned",
        },
        make_inputs=_images,
    ),
    Part(
        models.SwinTransformer,
        {
            **{name: value for name, value in VIT.items() if name not in ("num_layers", "mlp_dim", "layer_scale")},
            "image_size": (8, 8),
            "patch_size": 2,
            "window_size": 3,
            "depths": (1, 2),
            "num_heads": (2, 3),
            "mlp_ratio": 1.5,
        },
        make_inputs=_images,
    ),
    Part(
        models.CLIP,
        {
            "image_tower": lambda: models.ViT(8, 4, None, d_model=12, num_layers=2, num_heads=2, channels=3),
            "text_tower": lambda: models.TextEncoder(13, d_model=8, num_layers=2, num_heads=2, max_length=9),
            "projection_dim": 6,
            "logit_scale": 5.0,
            "max_logit_scale": 50.0,
        },
        make_inputs=lambda rng: (
            {"images": rng.normal(size=(2, 8, 8, 3)).astype("float32"), "text": _ids(2, 5)(rng)[0]},
        ),
    ),
]
PARTS = LAYERS + MODELS


def call(part, inputs, **options):
    """What a part gives for its inputs, as a list of arrays."""
    return [np.asarray(x) for x in keras.tree.flatten(part(*inputs, **options))]
