"""Dropout whose mask is a function of a seed and of positions, cheap in plain TensorFlow and under XLA."""

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dropout_bits


def dropped(x, rate, seed):
    """Sets a share of the numbers to zero; the others grow by 1 / (1 - rate).

    The mask depends on the seed and on where a number stands alone: the same seed gives the same mask on every device,
    compiled or not, in a recomputation, and (for attention weights) in dense and in blockwise attention. TensorFlow's
    own dropout draws a float for each number by Philox, which costs twice as much in a graph and six times as much
    under XLA on a CPU; here a hash gives 16 bits for each (32 for rates near 0 or 1).

    Args:
        x: floating [..., R, C], of any rank above 0.
        rate: share to drop, in [0, 1); realised to within 2**-17 and 0.1 % of it and of 1 - rate.
        seed: int [2]. Required with a rate above 0.

    Returns:
        Of x's shape and dtype.

    Raises:
        ValueError: a rate without a seed.

    Reference: Srivastava et al., "Dropout", 2014, https://jmlr.org/papers/v15/srivastava14a.html
    """
    if not rate:
        return x
    if seed is None:
        raise ValueError(f"dropout_rate={rate} needs dropout_seed, an int32 tensor of shape [2].")
    x = tf.convert_to_tensor(x)
    *leading, columns = checks.sizes(x)
    *blocks, rows = leading or [1]
    count = 1
    for size in blocks:
        count *= size
    keys = dropout_bits.row_keys(seed, tf.range(count), tf.range(rows))
    keep = tf.reshape(dropout_bits.keep_all(keys, columns, rate), [*leading, columns])

    @tf.custom_gradient
    def drop(x):
        def select(x):
            # By select: what is dropped is 0 even where it is not finite.
            return tf.where(keep, x * tf.constant(1 / (1 - rate), x.dtype), tf.zeros([], x.dtype))

        return select(x), select

    return drop(x)
