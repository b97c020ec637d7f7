"""The way around a sub-layer: normalization, dropout and the residual sum, plain or gated."""

import keras
import tensorflow as tf

from keras_attention.layers.built_first import built_first
from keras_attention.layers.drop_path import DropPath
from keras_attention.layers.dropout import Dropout
from keras_attention.layers.layer_scale import LayerScale
from keras_attention.ops.basics import checks
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class Residual(Recorded, keras.layers.Layer):
    """x + f(norm(x)) (pre-norm) or norm(x + f(x)) (post-norm), with dropout on f's output.

    `residual="gated"` multiplies f's output by a learned gate per feature, sigmoid(g), that starts almost open
    (g = 2): the model can close it and go around the sub-layer, which is the documents' cure 4.1.2 for attention that
    settles on a few positions.

    Used in two calls: `h = f(residual.before(x))`, `y = residual(x, h)`.

    Args:
        norm: "pre" or "post".
        residual: "add" or "gated".
        dropout_rate: of f's output, in training.
        layer_scale: None, or the first value of a learned factor per feature on f's output, see `LayerScale`.
        drop_path_rate: share of rows whose f is left out in training, see `DropPath`.
        epsilon: of the layer normalization.

    Reference: Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020,
    https://arxiv.org/abs/2002.04745; the gate: Srivastava et al., "Highway Networks", 2015,
    https://arxiv.org/abs/1505.00387
    """

    def __init__(
        self,
        *,
        norm="pre",
        residual="add",
        dropout_rate=0.0,
        layer_scale=None,
        drop_path_rate=0.0,
        epsilon=1e-6,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.norm = checks.one_of("norm", norm, ("pre", "post"))
        self.residual = checks.one_of("residual", residual, ("add", "gated"))
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.epsilon = checks.positive_number("epsilon", epsilon)
        self.seed = seed
        self.supports_masking = True
        self.normalization = keras.layers.LayerNormalization(
            epsilon=self.epsilon, dtype=self.dtype_policy, name="normalization"
        )
        self.dropout = Dropout(self.dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout")
        self.layer_scale = layer_scale
        self.drop_path_rate = checks.rate("drop_path_rate", drop_path_rate)
        self.scaling = None
        if layer_scale is not None:
            self.scaling = LayerScale(layer_scale, dtype=self.dtype_policy, name="layer_scale")
        self.drop_path = DropPath(self.drop_path_rate, seed=seed, dtype=self.dtype_policy, name="drop_path")

    def build(self, x_shape, h_shape=None):
        self.normalization.build(x_shape)
        if self.scaling is not None:
            self.scaling.build(x_shape)
        if self.residual == "gated":
            self.gate = self.add_weight(name="gate", shape=(x_shape[-1],), initializer=keras.initializers.Constant(2.0))

    @built_first
    def before(self, x):
        """What the sub-layer is given."""
        return self.normalization(x) if self.norm == "pre" else x

    def call(self, x, h, training=False):
        h = self.dropout(h, training=training)
        if self.residual == "gated":
            h = h * tf.sigmoid(tf.cast(self.gate, h.dtype))
        if self.scaling is not None:
            h = self.scaling(h)
        h = self.drop_path(h, training=training)
        return self.normalization(x + h) if self.norm == "post" else x + h

    def compute_output_shape(self, x_shape, h_shape=None):
        return x_shape
