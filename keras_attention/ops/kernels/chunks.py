"""Sequences cut into chunks of one size, whatever their length, so that long ones need no loop over their places."""

import tensorflow as tf

from keras_attention.ops.basics import checks


def split(x, chunk):
    """[..., T, D] -> [..., N, chunk, D], zeros appended where `chunk` does not divide T, which may be unknown."""
    *leading, length, depth = checks.sizes(x)
    number = (length + chunk - 1) // chunk
    return tf.reshape(pad(x, number * chunk - length, front=False), [*leading, number, chunk, depth])


def join(x, length):
    """[..., N, C, D] -> [..., length, D], the appended places dropped."""
    *leading, number, chunk, depth = checks.sizes(x)
    return tf.reshape(x, [*leading, number * chunk, depth])[..., :length, :]


def pad(x, amount, front):
    """`amount` zeros (an int or a scalar tensor) along the axis before the last, in front or behind."""
    if isinstance(amount, int) and amount == 0:
        return x
    return tf.pad(x, [[0, 0]] * (x.shape.rank - 2) + [[amount, 0] if front else [0, amount], [0, 0]])


def size_for(length, chunk_size):
    """`chunk_size`, or the length itself where that is known and smaller: nothing is padded up to a chunk in vain."""
    return max(1, min(chunk_size, length)) if isinstance(length, int) else chunk_size
