"""A learned factor per feature on a residual branch."""

import keras
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class LayerScale(Recorded, keras.layers.Layer):
    """x * scale, with one learned factor per feature that starts small, so that deep stacks start near the identity.

    Args:
        initial_value: of the factors; 1e-5 in deep stacks, 0.1 in shallow ones.

    Call arguments:
        x: [..., E].

    Returns:
        [..., E].

    Reference: Touvron et al., "Going deeper with Image Transformers", 2021, https://arxiv.org/abs/2103.17239
    """

    def __init__(self, initial_value=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = checks.positive_number("initial_value", initial_value)
        self.supports_masking = True

    def build(self, x_shape):
        self.scale = self.add_weight(
            name="scale", shape=(x_shape[-1],), initializer=keras.initializers.Constant(self.initial_value)
        )

    def call(self, x):
        return x * tf.cast(self.scale, x.dtype)

    def compute_output_shape(self, x_shape):
        return x_shape
