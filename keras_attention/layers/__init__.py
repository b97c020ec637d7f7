"""Keras layers: attention, positions, embeddings and Transformer blocks."""

from keras_attention.layers.blocks import DecoderBlock, EncoderBlock
from keras_attention.layers.cross_modal import CrossModalAttention
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.head_count import recommended_num_heads
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.positions import PositionalEncoding, SinusoidalEncoding
from keras_attention.layers.residual import Residual
from keras_attention.layers.token_embedding import TokenEmbedding

__all__ = [
    "CrossModalAttention",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Residual",
    "SinusoidalEncoding",
    "TokenEmbedding",
    "recommended_num_heads",
]
