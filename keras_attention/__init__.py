"""Attention for TensorFlow/Keras, from layer to served model."""

__version__ = "0.1.0"
