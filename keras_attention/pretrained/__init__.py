"""Weights from elsewhere for the models of this package."""

from keras_attention.pretrained.clip import load_clip
from keras_attention.pretrained.dinov2 import load_dinov2
from keras_attention.pretrained.swin import load_swin
from keras_attention.pretrained.vit import load_vit

__all__ = ["load_clip", "load_dinov2", "load_swin", "load_vit"]
