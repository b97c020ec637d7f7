"""One line per layer: everything in test_every_layer.py then runs on it."""

import tensorflow as tf
from contract_case import Case

from keras_attention import layers
from keras_attention.layers.dropout import Dropout

BLOCK = {
    "d_model": 8,
    "num_heads": 4,
    "mlp_dim": 12,
    "mechanism": "softmax",
    "num_kv_heads": 2,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "activation": "gelu",
    "gated_mlp": True,
    "positions": "rotary",
    "norm": "post",
    "residual": "gated",
    "layer_scale": 0.3,
    "drop_path_rate": 0.1,
    "epsilon": 1e-3,
    "remat": True,
    "seed": 3,
}
KEY_BIAS = ("key/bias",)


def carries(name):
    """The mask of the input `name` goes on with the output."""
    return lambda inputs, masks: masks.get(name)


def attention(scheme, dtype):
    """Attention with a scheme of positions, which takes no tensors itself."""
    return layers.MultiHeadAttention(8, 2, positions=scheme, dtype=dtype)


def marks_of_ids(inputs, masks):
    return inputs["ids"] != 3


def text_then_image(inputs, masks):
    """The rows of both sides, where one has a mask."""
    if not masks:
        return None
    sides = [masks.get(name, tf.ones(inputs[name].shape[:2], tf.bool)) for name in ("text", "image")]
    return tf.concat(sides, axis=1)


CROSS_MODAL = {
    "d_model": 8,
    "num_heads": 4,
    "mechanism": "softmax",
    "num_kv_heads": 2,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "gate_initializer": "ones",
    "epsilon": 1e-3,
    "seed": 3,
}

LAYERS = [
    Case(
        layers.ALiBi,
        {"num_heads": 2},
        {"x": ("T", 6)},
        around=attention,
        carried=carries("x"),
        masked=("x",),
        idle=KEY_BIAS,
    ),
    Case(
        layers.ConvStem,
        {"channels": [4, 6], "strides": [1, 2], "activation": "tanh", "epsilon": 1e-3},
        {"x": ("H", "W", 5)},
        least=1,
    ),
    Case(
        layers.CrossModalAttention,
        {**CROSS_MODAL, "direction": "both"},
        {"image": ("S", 6), "text": ("T", 8)},
        carried=text_then_image,
        masked=("image", "text"),
        idle=KEY_BIAS,
    ),
    Case(
        layers.CrossModalAttention,
        {**CROSS_MODAL, "direction": "text_to_image"},
        {"image": ("H", "W", 6), "text": ("T", 8)},
        masked=("text",),
        idle=KEY_BIAS,
        name="CrossModalAttention-map",
    ),
    Case(
        layers.DecoderBlock,
        {**BLOCK, "cross_mechanism": "softmax"},
        {"x": ("T", 8), "memory": ("S", 8)},
        carried=carries("x"),
        masked=("x", "memory"),
        idle=KEY_BIAS,
    ),
    Case(layers.DropPath, {"rate": 0.1, "seed": 3}, {"x": ("T", 6)}, carried=carries("x"), masked=("x",)),
    Case(
        Dropout,
        {"rate": 0.1, "seed": 3, "noise_shape": [None, 1, None]},
        {"x": ("T", 6)},
        also=({"noise_shape": None},),
        carried=carries("x"),
        masked=("x",),
    ),
    Case(layers.EncoderBlock, BLOCK, {"x": ("T", 8)}, carried=carries("x"), masked=("x",), idle=KEY_BIAS),
    Case(
        layers.FeedForward,
        {"mlp_dim": 9, "activation": "gelu", "gated": True, "dropout_rate": 0.1, "seed": 3},
        {"x": ("T", 6)},
        carried=carries("x"),
        masked=("x",),
    ),
    Case(
        layers.GridPositions,
        {"grid": (2, 3), "d_model": 5, "num_prefix_tokens": 1, "initializer": "glorot_uniform"},
        {"x": (7, 5)},
        carried=carries("x"),
        masked=("x",),
    ),
    Case(layers.LayerScale, {"initial_value": 0.3}, {"x": ("T", 6)}, carried=carries("x"), masked=("x",)),
    Case(
        layers.MultiHeadAttention,
        {
            "d_model": 12,
            "num_heads": 4,
            "mechanism": "softmax",
            "num_kv_heads": 2,
            "head_dim": 6,
            "positions": "alibi",
            "dropout_rate": 0.1,
            "temperature": 1.7,
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
            "seed": 3,
        },
        {"x": ("T", 6)},
        carried=carries("x"),
        masked=("x",),
    ),
    Case(
        layers.MultiHeadAttention,
        {"d_model": 8, "num_heads": 2},
        {"v": ("S", 6), "k": ("S", 5), "q": ("T", 4)},
        carried=carries("q"),
        masked=("v", "k", "q"),
        idle=KEY_BIAS,
        name="MultiHeadAttention-cross",
    ),
    Case(
        layers.PatchEmbedding,
        {"patch_size": (2, 3), "d_model": 6, "initializer": "he_normal"},
        {"x": ("H", "W", 5)},
        least=1,
    ),
    Case(layers.PatchMerging, {"epsilon": 1e-3}, {"x": ("H", "W", 5)}, least=1),
    Case(
        layers.PositionalEncoding,
        {"max_len": 4, "d_model": 6, "beyond": "clip", "initializer": "glorot_uniform"},
        {"x": ("T", 6)},
        carried=carries("x"),
        masked=("x",),
    ),
    Case(
        layers.PositionalEncoding,
        {"max_len": 4, "d_model": 6, "beyond": "interpolate"},
        {"x": ("T", 6)},
        carried=carries("x"),
        masked=("x",),
        name="PositionalEncoding-interpolate",
    ),
    Case(
        layers.RelativePositionBias,
        {
            "num_heads": 2,
            "num_buckets": 6,
            "max_distance": 9,
            "bidirectional": False,
            "initializer": "glorot_uniform",
        },
        {"x": ("T", 6)},
        around=attention,
        carried=carries("x"),
        masked=("x",),
        idle=KEY_BIAS,
    ),
    Case(
        layers.RelativePositionBias2D,
        {"window": (2, 3), "num_heads": 2, "num_prefix_tokens": 1, "initializer": "glorot_uniform"},
        {"x": (7, 6)},
        around=attention,
        carried=carries("x"),
        masked=("x",),
        idle=KEY_BIAS,
    ),
    Case(
        layers.Residual,
        {
            "norm": "post",
            "residual": "gated",
            "dropout_rate": 0.1,
            "layer_scale": 0.3,
            "drop_path_rate": 0.1,
            "epsilon": 1e-3,
            "seed": 3,
        },
        {"x": ("T", 6), "h": ("T", 6)},
        carried=carries("x"),
        masked=("x",),
    ),
    Case(
        layers.RotaryEmbedding,
        {"rotary_dim": 4, "base": 100.0, "layout": "interleaved"},
        {"x": (2, "T", 6)},
    ),
    Case(layers.SinusoidalEncoding, {}, {"x": ("T", 6)}, carried=carries("x"), masked=("x",)),
    Case(
        layers.TokenEmbedding,
        {"vocab_size": 11, "d_model": 6, "pad_id": 3, "scale": False},
        {"ids": ("T",)},
        ids={"ids": 11},
        carried=marks_of_ids,
        padded=("ids",),
        pad_id=3,
    ),
    Case(
        layers.WindowBlock,
        {**BLOCK, "window": 3, "shift": 1},
        {"x": ("H", "W", 8)},
        least=1,
        idle=KEY_BIAS,
    ),
]
