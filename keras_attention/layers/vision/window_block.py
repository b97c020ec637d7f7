"""An encoder block whose attention stays within windows of an image."""

import keras
import tensorflow as tf

from keras_attention.layers.blocks import EncoderBlock
from keras_attention.layers.positions.relative_position_bias import RelativePositionBias2D
from keras_attention.ops.basics import checks
from keras_attention.ops.vision import shifted_windows


@keras.saving.register_keras_serializable("keras_attention")
class WindowBlock(EncoderBlock):
    """Self-attention within windows of a grid, with a relative position bias, and a feed-forward layer.

    With a shift, the windows straddle the borders of those without: blocks in turn let every token hear from the whole
    image. A grid with a side that fits into one window is not shifted. Other sides than multiples of the window are
    padded with zeros, which take part as keys, as in the published models. Time and memory O(T window^2).

    Args:
        d_model, num_heads, mlp_dim: see `EncoderBlock`.
        window: side of a window, in tokens.
        shift: how far the windows are shifted, 0 or about half of `window`.
        mechanism: how to attend in a window; one that takes a mask and a bias.
        **kwargs: other arguments of `EncoderBlock`.

    Call arguments:
        x: [B, H, W, d_model].

    Returns:
        [B, H, W, d_model].

    Reference: Liu et al., "Swin Transformer", 2021, https://arxiv.org/abs/2103.14030
    """

    def __init__(self, d_model, num_heads, mlp_dim, *, window=7, shift=0, mechanism="auto", **kwargs):
        super().__init__(d_model, num_heads, mlp_dim, mechanism=mechanism, **kwargs)
        self.window = checks.positive_int("window", window)
        self.shift = checks.nonnegative_int("shift", shift)
        if self.shift >= self.window:
            raise ValueError(f"shift must be smaller than window. Got shift={shift}, window={window}.")
        supports = self.attention.mechanism.supports
        if not (supports.bias and supports.free_mask):
            self.attention.mechanism.refuse("the bias and the mask of windows", "mechanism='softmax'")
        self.relative_bias = RelativePositionBias2D(
            (self.window, self.window), self.num_heads, dtype=self.dtype_policy, name="relative_bias"
        )

    def build(self, x_shape):
        super().build((None, None, x_shape[-1]))

    def call(self, x, training=False):
        return self._run(self._in_windows, tf.cast(x, self.compute_dtype), training=training)

    def _in_windows(self, y, training):
        h = self.attention_residual.before(y)
        h = shifted_windows.attend_in_windows(
            lambda windows, mask: self._attend(windows, mask, training), h, self.window, self.shift
        )
        return self._feed(self.attention_residual(y, h, training=training), training)

    def _attend(self, windows, mask, training):
        if mask is not None:
            # The same for every image, whose windows stand one after the other.
            images = checks.sizes(windows)[0] // checks.sizes(mask)[0]
            mask = tf.tile(mask, [images, 1, 1])
        return self.attention(windows, mask=mask, bias=self.relative_bias(), training=training)
