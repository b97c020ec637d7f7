"""Images cut into patches, each projected to one token."""

import keras

from keras_attention.ops.basics import checks
from keras_attention.ops.vision import patch_grids
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class PatchEmbedding(Recorded, keras.layers.Layer):
    """One vector per patch of an image: [B, H, W, C] -> [B, ceil(H/p), ceil(W/p), d_model], one linear projection.

    An image whose sides are no multiples of the patch is padded with zeros below and to the right, never cropped: every
    pixel counts, and every patch has at least one pixel.

    Args:
        patch_size: p, or (rows, columns).
        d_model: width of the tokens.
        initializer: of the kernel [rows, columns, C, d_model].

    Call arguments:
        x: floating [B, H, W, C], with H and W known or unknown.

    Returns:
        The grid of tokens, in the compute dtype.

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929
    """

    def __init__(self, patch_size, d_model, *, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_grids.pair("patch_size", patch_size)
        self.d_model = checks.positive_int("d_model", d_model)
        self.initializer = keras.initializers.get(initializer)
        self.projection = keras.layers.Conv2D(
            self.d_model,
            self.patch_size,
            strides=self.patch_size,
            data_format="channels_last",
            kernel_initializer=self.initializer,
            dtype=self.dtype_policy,
            name="projection",
        )

    def build(self, x_shape):
        self.projection.build(x_shape)

    def call(self, x):
        return patch_grids.convolved(self.projection, patch_grids.pad_to_multiple(x, self.patch_size))

    def compute_output_shape(self, x_shape):
        batch, *sizes, _ = x_shape
        grid = [None if size is None else -(-size // by) for size, by in zip(sizes, self.patch_size)]
        return (batch, *grid, self.d_model)
