"""Keras layers: attention, positions, embeddings and Transformer blocks."""

from keras_attention.layers.multi_head_attention import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
