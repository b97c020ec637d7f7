"""Dropout masks that are a function of position: any part of one can be made again, alone and in any order."""

import tensorflow as tf

from keras_attention.ops.basics import checks

# Multipliers of MurmurHash3's finaliser (Appleby 2011, public domain) and the golden ratio of Weyl sequences.
_GOLDEN, _FIRST, _SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35


def stream(seed, number):
    """A seed for one more mask of the same call, far from all that the caller will draw.

    Callers count their calls in one of the two numbers, so that seed + number would be the seed of a later call. Here
    both are mixed, four rounds of a Feistel network, which keeps different seeds different.

    Args:
        seed: int32 or int64 [2], or None, which stays None.
        number: which mask of the call, a Python int; 0 gives the seed itself.

    Returns:
        int32 [2].
    """
    if seed is None or number == 0:
        return seed
    low, high = _halves(seed)
    for i in range(4):
        low, high = high, low ^ _mixed(high + _u32((4 * number + i) * _GOLDEN % 2**32))
    return tf.bitcast(tf.stack([low, high]), tf.int32)


def row_keys(seed, heads, rows):
    """Two 32-bit keys for each row of each head.

    Args:
        seed: int32 or int64 [2].
        heads: integer [...], the number of each head (counted over the whole batch).
        rows: integer [R], the number of each row in its head.

    Returns:
        uint32 [2, ..., R].
    """
    low, high = _halves(seed)
    heads = tf.cast(heads, tf.uint32)[..., None] * _u32(_GOLDEN)
    rows = tf.cast(rows, tf.uint32) * _u32(_GOLDEN)
    first = _mixed(_mixed(_mixed(heads + low) ^ high) + rows)
    second = _mixed(_mixed(_mixed(heads ^ high) + low) ^ rows)
    return tf.stack([first, second])


def keep_mask(keys, columns, rate):
    """Which numbers survive: each with probability 1 - rate, independent of how the whole is cut into tiles.

    Args:
        keys: uint32 [2, ..., R], from `row_keys`.
        columns: integer [C], the number of each column.
        rate: share to drop, in [0, 1); realised to within 2**-17 and 0.1 % of it and of 1 - rate.

    Returns:
        Boolean [..., R, C]. The same keys and column numbers give the same values on every device, compiled or not.
    """
    columns = tf.cast(columns, tf.uint32)
    if _needs_32_bits(rate):
        return _bits(keys, columns) >= _u32(_threshold(rate, 32))
    halves = tf.bitwise.right_shift(_bits(keys, _shift(columns, 1)), (columns & _u32(1)) * _u32(16)) & _u32(0xFFFF)
    return halves >= _u32(_threshold(rate, 16))


def keep_all(keys, count, rate):
    """`keep_mask` of the columns 0 ... count - 1, at half its work: 32 random bits are enough for most pairs of them.

    Args:
        keys, rate: as `keep_mask`.
        count: int or int32 scalar.
    """
    if _needs_32_bits(rate):
        return keep_mask(keys, tf.range(count), rate)
    bits = _bits(keys, tf.range((count + 1) // 2))
    # Little-endian, as every machine that TensorFlow runs on: the low half comes first.
    halves = tf.reshape(tf.bitcast(bits, tf.uint16), [*checks.sizes(bits)[:-1], (count + 1) // 2 * 2])
    return halves[..., :count] >= tf.constant(_threshold(rate, 16), tf.uint16)


def _bits(keys, pairs):
    """uint32 [..., R, P]: a hash of each row's keys and the number of a pair of columns."""
    x = tf.cast(pairs, tf.uint32) * _u32(_GOLDEN) + keys[0][..., None]
    x = (x ^ _shift(x, 16)) * _u32(_FIRST)
    # The second key goes in between the rounds: with one key, two rows could be the same sequence, shifted.
    x = x ^ keys[1][..., None]
    x = (x ^ _shift(x, 13)) * _u32(_SECOND)
    return x ^ _shift(x, 16)


def _halves(seed):
    return tf.unstack(tf.cast(tf.bitwise.bitwise_and(tf.cast(seed, tf.int64), 0xFFFFFFFF), tf.uint32))


def _threshold(rate, bits):
    """The least number of so many bits that survives."""
    return min(round(rate * 2**bits), 2**bits - 1)


def _needs_32_bits(rate):
    """Whether 16 bits miss a rate near 0 or 1 by more than a thousandth of what is dropped or of what is kept."""
    return abs(_threshold(rate, 16) / 2**16 - rate) > 1e-3 * min(rate, 1 - rate)


def _mixed(x):
    x = (x ^ _shift(x, 16)) * _u32(_FIRST)
    x = (x ^ _shift(x, 13)) * _u32(_SECOND)
    return x ^ _shift(x, 16)


def _shift(x, bits):
    return tf.bitwise.right_shift(x, _u32(bits))


def _u32(value):
    return tf.constant(value, tf.uint32)
