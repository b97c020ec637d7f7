"""Convolutions that read local features before attention sees the image."""

import keras

from keras_attention.ops.basics import checks
from keras_attention.ops.vision import patch_grids
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class ConvStem(Recorded, keras.layers.Layer):
    """3 x 3 convolutions, each followed by a normalization and an activation: [B, H, W, C] -> [B, h, w, channels[-1]].

    The normalization is a layer normalization over the channels of each place (as in ConvNeXt): unlike batch
    normalization it is the same in training and serving, for any batch, on any number of replicas. Borders are padded,
    so that any image is taken; a stride of 2 halves its sides, rounded up.

    Args:
        channels: of each convolution. strides: of each convolution.
        activation: after each. epsilon: of the normalizations.

    Call arguments:
        x: [B, H, W, C].

    Returns:
        [B, ceil(H / product of strides), ceil(W / product of strides), channels[-1]] in the compute dtype.

    Reference: Xiao et al., "Early Convolutions Help Transformers See Better", 2021, https://arxiv.org/abs/2106.14881
    """

    def __init__(self, channels, strides, *, activation="gelu", epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.channels = [checks.positive_int("channels", n) for n in channels]
        self.strides = [checks.positive_int("strides", n) for n in strides]
        if len(self.channels) != len(self.strides) or not self.channels:
            raise ValueError(
                f"channels and strides must have one number for each convolution. Got channels={channels}, "
                f"strides={strides}."
            )
        self.activation = keras.activations.get(activation)
        self.epsilon = epsilon
        self.convolutions = [
            keras.layers.Conv2D(
                n,
                3,
                strides=stride,
                padding="same",
                data_format="channels_last",
                use_bias=False,  # the normalization has one
                dtype=self.dtype_policy,
                name=f"convolution_{i}",
            )
            for i, (n, stride) in enumerate(zip(self.channels, self.strides))
        ]
        self.normalizations = [
            keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=f"normalization_{i}")
            for i in range(len(self.channels))
        ]

    def build(self, x_shape):
        channels = x_shape[-1]
        for convolution, normalization in zip(self.convolutions, self.normalizations):
            convolution.build((None, None, None, channels))
            channels = convolution.filters
            normalization.build((None, None, None, channels))

    def call(self, x):
        for convolution, normalization in zip(self.convolutions, self.normalizations):
            x = self.activation(normalization(patch_grids.convolved(convolution, x)))
        return x

    def compute_output_shape(self, x_shape):
        batch, *sizes, _ = x_shape
        for stride in self.strides:
            sizes = [None if size is None else -(-size // stride) for size in sizes]
        return (batch, *sizes, self.channels[-1])
