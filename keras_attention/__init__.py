"""Attention for TensorFlow/Keras, from layer to served model."""

import sys

# First in the alphabet and in fact: this one raises where Keras runs on another backend.
from keras_attention import backend as _backend  # noqa: F401
from keras_attention.lazy_names import lazy_names

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

_LAYERS = "keras_attention.layers"
_MASKS = "keras_attention.ops.basics.masks"
# `import keras_attention` is enough to write `keras_attention.models.ViT`.
__getattr__, __dir__ = lazy_names(
    __name__,
    "checkpoints",
    "diagnostics",
    "export",
    "generation",
    "images",
    "inference",
    "layers",
    "mechanisms",
    "models",
    "ops",
    "pretrained",
    "text",
    "training",
    MultiHeadAttention=_LAYERS,
    PositionalEncoding=_LAYERS,
    blockwise_attention="keras_attention.ops.dense.blockwise",
    linear_attention="keras_attention.ops.kernels.linear",
    look_ahead_mask=_MASKS,
    padding_mask=_MASKS,
    recommended_num_heads=_LAYERS,
    scaled_dot_product_attention="keras_attention.ops.dense.dot_product",
)

# Keras finds the layers and mechanisms that a file names once they are imported: so that importing the package is
# enough, and not in the process of a command, which shows its help without TensorFlow (keras_attention_command.py).
if "keras_attention_command" not in sys.modules:
    import keras_attention.layers  # noqa: F401
