"""Keras layers: attention, positions, embeddings and Transformer blocks."""

from keras_attention.layers.attention.cross_modal import CrossModalAttention
from keras_attention.layers.attention.head_count import recommended_num_heads
from keras_attention.layers.attention.multi_head_attention import MultiHeadAttention
from keras_attention.layers.blocks import DecoderBlock, EncoderBlock
from keras_attention.layers.drop_path import DropPath
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.layer_scale import LayerScale
from keras_attention.layers.positions.alibi import ALiBi
from keras_attention.layers.positions.encodings import PositionalEncoding, SinusoidalEncoding
from keras_attention.layers.positions.grid_positions import GridPositions
from keras_attention.layers.positions.relative_position_bias import RelativePositionBias, RelativePositionBias2D
from keras_attention.layers.positions.rotary_embedding import RotaryEmbedding
from keras_attention.layers.residual import Residual
from keras_attention.layers.token_embedding import TokenEmbedding
from keras_attention.layers.vision.conv_stem import ConvStem
from keras_attention.layers.vision.patch_embedding import PatchEmbedding
from keras_attention.layers.vision.patch_merging import PatchMerging
from keras_attention.layers.vision.window_block import WindowBlock

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
