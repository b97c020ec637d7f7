"""Models built on the layers, each readable alone."""

from keras_attention.models.transformer import Transformer
from keras_attention.models.vit import ViT

__all__ = ["Transformer", "ViT"]
