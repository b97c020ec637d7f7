"""Attention for TensorFlow/Keras, from layer to served model."""

import keras as _keras

if _keras.config.backend() != "tensorflow":
    raise ImportError(
        f"keras_attention runs on Keras' TensorFlow backend only. Got backend {_keras.config.backend()!r}: set "
        "KERAS_BACKEND=tensorflow (or unset it) before Python starts."
    )

from keras_attention.layers import MultiHeadAttention, PositionalEncoding, recommended_num_heads
from keras_attention.ops.dot_product import scaled_dot_product_attention
from keras_attention.ops.linear import linear_attention
from keras_attention.ops.masks import look_ahead_mask, padding_mask

__version__ = "0.1.0"

__all__ = [
    "MultiHeadAttention",
    "PositionalEncoding",
    "linear_attention",
    "look_ahead_mask",
    "padding_mask",
    "recommended_num_heads",
    "scaled_dot_product_attention",
]
