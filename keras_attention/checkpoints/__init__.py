"""Weights from elsewhere for the models of this package."""

from keras_attention.checkpoints.clip import load_clip

__all__ = ["load_clip"]
