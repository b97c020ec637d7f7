"""Keras layers: attention, positions, embeddings and Transformer blocks."""

from keras_attention.layers.alibi import ALiBi
from keras_attention.layers.blocks import DecoderBlock, EncoderBlock
from keras_attention.layers.conv_stem import ConvStem
from keras_attention.layers.cross_modal import CrossModalAttention
from keras_attention.layers.drop_path import DropPath
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.grid_positions import GridPositions
from keras_attention.layers.head_count import recommended_num_heads
from keras_attention.layers.layer_scale import LayerScale
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.patch_embedding import PatchEmbedding
from keras_attention.layers.patch_merging import PatchMerging
from keras_attention.layers.positions import PositionalEncoding, SinusoidalEncoding
from keras_attention.layers.relative_position_bias import RelativePositionBias, RelativePositionBias2D
from keras_attention.layers.residual import Residual
from keras_attention.layers.rotary_embedding import RotaryEmbedding
from keras_attention.layers.token_embedding import TokenEmbedding
from keras_attention.layers.window_block import WindowBlock

__all__ = [
    "ALiBi",
    "ConvStem",
    "CrossModalAttention",
    "DecoderBlock",
    "DropPath",
    "EncoderBlock",
    "FeedForward",
    "GridPositions",
    "LayerScale",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PatchMerging",
    "PositionalEncoding",
    "RelativePositionBias",
    "RelativePositionBias2D",
    "Residual",
    "RotaryEmbedding",
    "SinusoidalEncoding",
    "TokenEmbedding",
    "WindowBlock",
    "recommended_num_heads",
]
