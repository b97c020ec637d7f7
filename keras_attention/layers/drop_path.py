"""Stochastic depth: whole residual branches left out in training."""

import keras
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dropout_bits
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class DropPath(Recorded, keras.layers.Layer):
    """Leaves out the branch of a share of the batch's rows in training; the rows that stay are scaled up to the mean.

    Args:
        rate: share of rows dropped.
        seed: of the choice.

    Call arguments:
        x: [B, ...].

    Returns:
        The same shape: x * 0 or x / (1 - rate) by row in training, x otherwise.

    Reference: Huang et al., "Deep Networks with Stochastic Depth", 2016, https://arxiv.org/abs/1603.09382
    """

    def __init__(self, rate=0.0, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = checks.rate("rate", rate)
        self.seed = seed
        self.supports_masking = True
        self._seed_generator = keras.random.SeedGenerator(seed, name="drop_path_seed") if self.rate else None

    def call(self, x, training=False):
        if not (training and self.rate):
            return x
        rows = tf.reshape(checks.sizes(x)[0], [1])
        shape = tf.concat([rows, tf.ones([x.shape.rank - 1], tf.int32)], axis=0)
        # By the stateless dropout of ones: where a row stays, its factor is 1 / (1 - rate).
        # A stream of its own: the dropout before it may have the same seed.
        seed = dropout_bits.stream(self._seed_generator.next(), 1)
        return x * tf.nn.experimental.stateless_dropout(tf.ones(shape, x.dtype), rate=self.rate, seed=seed)

    def compute_output_shape(self, x_shape):
        return x_shape
