"""Halving the sides of a grid of tokens."""

import keras
import tensorflow as tf

from keras_attention.ops.vision import patch_grids
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class PatchMerging(Recorded, keras.layers.Layer):
    """Every 2 x 2 tokens become one of twice the width: [B, H, W, C] -> [B, ceil(H/2), ceil(W/2), 2C].

    The four stand beside each other (upper left, lower left, upper right, lower right), are normalized and projected.
    Odd sides are padded with zeros.

    Args:
        epsilon: of the layer normalization.

    Call arguments:
        x: [B, H, W, C].

    Returns:
        [B, ceil(H/2), ceil(W/2), 2C] in the compute dtype.

    Reference: Liu et al., "Swin Transformer", 2021, https://arxiv.org/abs/2103.14030
    """

    def __init__(self, *, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.normalization = keras.layers.LayerNormalization(
            epsilon=epsilon, dtype=self.dtype_policy, name="normalization"
        )

    def build(self, x_shape):
        width = x_shape[-1]
        self.reduction = keras.layers.Dense(2 * width, use_bias=False, dtype=self.dtype_policy, name="reduction")
        self.normalization.build((None, None, None, 4 * width))
        self.reduction.build((None, None, None, 4 * width))

    def call(self, x):
        x = patch_grids.pad_to_multiple(x, (2, 2))
        quarters = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.normalization(tf.concat(quarters, axis=-1)))

    def compute_output_shape(self, x_shape):
        batch, *sizes, width = x_shape
        return (batch, *(None if size is None else -(-size // 2) for size in sizes), 2 * width)
