"""Models built on the layers, each readable alone."""

from keras_attention.models.transformer import Transformer

__all__ = ["Transformer"]
