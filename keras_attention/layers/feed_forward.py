"""The position-wise feed-forward layer."""

import keras

from keras_attention.layers.dropout import Dropout
from keras_attention.ops.basics import checks
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class FeedForward(Recorded, keras.layers.Layer):
    """Two dense layers with an activation between: [B, T, E] -> [B, T, mlp_dim] -> [B, T, E].

    Args:
        mlp_dim: width between.
        activation: its name or function.
        gated: multiply the activation by a third dense layer of x, [B, T, mlp_dim]; with activation "silu" that is
            SwiGLU. It has half as many weights again: take two thirds of the width for the same cost.
        dropout_rate: dropout before the last layer, in training.

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762; gated: Shazeer, "GLU
    Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202 (there without biases)
    """

    def __init__(self, mlp_dim, *, activation="relu", gated=False, dropout_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = checks.positive_int("mlp_dim", mlp_dim)
        self.activation = keras.activations.get(activation)
        self.gated = bool(gated)
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.seed = seed
        self.supports_masking = True
        self.dropout = Dropout(self.dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout")

    def build(self, x_shape):
        width = x_shape[-1]
        self.inner = keras.layers.Dense(self.mlp_dim, activation=self.activation, dtype=self.dtype_policy, name="inner")
        self.outer = keras.layers.Dense(width, dtype=self.dtype_policy, name="outer")
        self.inner.build(x_shape)
        if self.gated:
            self.gate = keras.layers.Dense(self.mlp_dim, dtype=self.dtype_policy, name="gate")
            self.gate.build(x_shape)
        self.outer.build((*x_shape[:-1], self.mlp_dim))

    def call(self, x, training=False):
        h = self.inner(x)
        if self.gated:
            h = h * self.gate(x)
        return self.outer(self.dropout(h, training=training))

    def compute_output_shape(self, x_shape):
        return x_shape
