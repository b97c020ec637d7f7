"""Attention for TensorFlow/Keras, from layer to served model."""

# First in the alphabet and in fact: this one raises where Keras runs on another backend.
from keras_attention import backend as _backend  # noqa: F401
from keras_attention.layers import MultiHeadAttention, PositionalEncoding, recommended_num_heads
from keras_attention.lazy_names import lazy_names
from keras_attention.ops.basics.masks import look_ahead_mask, padding_mask
from keras_attention.ops.dense.blockwise import blockwise_attention
from keras_attention.ops.dense.dot_product import scaled_dot_product_attention
from keras_attention.ops.kernels.linear import linear_attention

__version__ = "0.1.0"

__all__ = [
    "MultiHeadAttention",
    "PositionalEncoding",
    "blockwise_attention",
    "linear_attention",
    "look_ahead_mask",
    "padding_mask",
    "recommended_num_heads",
    "scaled_dot_product_attention",
]

# `import keras_attention` is enough to write `keras_attention.models.ViT`.
__getattr__, __dir__ = lazy_names(
    __name__,
    "checkpoints",
    "diagnostics",
    "export",
    "generation",
    "images",
    "inference",
    "models",
    "pretrained",
    "text",
    "training",
)
