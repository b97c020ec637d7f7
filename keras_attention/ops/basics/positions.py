"""Positions inside attention: rotated pairs of features, and biases that depend on a distance.

A distance is the key's position minus the query's: below zero for what came before.
"""

import math

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense.dot_product import accumulation_dtype

LAYOUTS = ("half", "interleaved")


def rotate(x, positions, *, base=10000.0, rotary_dim=None, layout="half"):
    """Turns pairs of features by angles that grow with the position, so that products depend on distances alone.

    Pair i of `rotary_dim / 2` is turned by position / base^(2 i / rotary_dim). Angles are taken in at least float32
    whatever x's dtype: bfloat16 knows no 257.

    Args:
        x: floating [B, N, T, D].
        positions: integer [T] or [B, T].
        base: the slowest pair turns once in about 2 pi base positions.
        rotary_dim: how many features are turned, the first ones; even; D by default. The others stay.
        layout: which features make a pair. "half": i and i + rotary_dim / 2 (GPT-NeoX, Llama); "interleaved": 2 i and
            2 i + 1 (RoFormer, GPT-J).

    Returns:
        [B, N, T, D] in x's dtype.

    Reference: Su et al., "RoFormer", 2021, https://arxiv.org/abs/2104.09864
    """
    depth = x.shape[-1]
    turned = depth if rotary_dim is None else rotary_dim
    if turned % 2 or turned > depth:
        raise ValueError(
            f"Rotary positions turn pairs of features: rotary_dim must be even and at most the {depth} features that "
            f"there are. Got {turned}; use rotary_dim={depth - depth % 2}."
        )
    dtype = accumulation_dtype(x.dtype)
    pairs = turned // 2
    frequencies = base ** (-np.arange(pairs, dtype=np.float64) / pairs)
    positions = tf.convert_to_tensor(positions)
    angles = tf.cast(positions, dtype)[..., None] * tf.constant(frequencies, dtype)  # [T, P] or [B, T, P]
    angles = angles[:, None] if angles.shape.rank == 3 else angles
    cosines, sines = tf.cos(angles), tf.sin(angles)
    wide = tf.cast(x[..., :turned], dtype)
    if layout == "half":
        first, second = wide[..., :pairs], wide[..., pairs:]
        out = tf.concat([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    else:
        first, second = wide[..., 0::2], wide[..., 1::2]
        out = tf.stack([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
        out = tf.reshape(out, checks.sizes(wide))
    out = tf.cast(out, x.dtype)
    return out if turned == depth else tf.concat([out, x[..., turned:]], axis=-1)


def alibi_slopes(num_heads):
    """ALiBi's slopes: NumPy float64 [num_heads].

    For a power of two 2^(-8/H), 2^(-16/H), ..., 2^-8. For other counts those of the power of two below, then every
    second one of the power of two above, as in the authors' code.

    Reference: Press et al., "Train Short, Test Long", 2022, https://arxiv.org/abs/2108.12409
    """
    below = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-8.0 * np.arange(1, 2 * below, 2) / (2 * below))
    return np.concatenate([slopes, between[: num_heads - below]])


def alibi_bias(distance, slopes, dtype=tf.float32):
    """-slope * |distance|: int32 [B|1, H|1, ...] and [H] -> [B|1, H, ...] of `dtype`."""
    slopes = np.reshape(slopes, [1, -1, *[1] * (distance.shape.rank - 2)])
    return tf.cast(tf.abs(distance), dtype) * tf.constant(-slopes, dtype)


def relative_buckets(num_buckets, max_distance, bidirectional):
    """T5's bucket of each distance: half of the buckets hold one distance each, the others grow logarithmically.

    A table rather than logarithms in the graph: runtimes round them differently where two buckets meet.

    Args:
        num_buckets: bidirectional ones are shared between both directions.
        max_distance: this distance and all beyond share the last bucket.
        bidirectional: whether keys ahead have buckets of their own; without, they share the bucket of distance 0.

    Returns:
        NumPy int32 [2 max_distance + 1], for distances -max_distance ... max_distance.

    Reference: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020,
    https://arxiv.org/abs/1910.10683
    """
    distance = np.arange(-max_distance, max_distance + 1)
    per_direction = num_buckets // 2 if bidirectional else num_buckets
    behind = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    exact = per_direction // 2
    share = np.log(np.maximum(behind, 1) / exact) / np.log(max_distance / exact)
    # Where a boundary is a whole number, its logarithm must not fall short of it by a rounding error.
    spread = exact + np.floor(share * (per_direction - exact) + 1e-9).astype(int)
    bucket = np.where(behind < exact, behind, np.minimum(spread, per_direction - 1))
    return (bucket + per_direction * (bidirectional & (distance > 0))).astype("int32")


def bucket_bias(distance, by_distance):
    """Looks biases up by distance.

    Args:
        distance: int32 [B|1, H|1, ...].
        by_distance: [2 M + 1, H], for distances -M ... M; those beyond share the ends.

    Returns:
        [B|1, H, ...] in by_distance's dtype.
    """
    size, heads = by_distance.shape
    most = size // 2
    index = tf.clip_by_value(distance, -most, most) + most
    own = np.reshape(np.arange(heads), [1, heads, *[1] * (distance.shape.rank - 2)])
    return tf.gather(tf.reshape(by_distance, [-1]), index * heads + own)


def grid_offsets(window):
    """The number of the offset from each place of a grid to each other: int32 [h w, h w], in row-major order.

    NumPy, or a tensor where a size of the window is one.

    Offset (dy, dx) of key minus query has the number (dy + h - 1) (2 w - 1) + dx + w - 1.
    """
    height, width = window
    known = isinstance(height, int) and isinstance(width, int)
    place = np.arange(height * width, dtype="int32") if known else tf.range(height * width)
    rows, columns = place // width, place % width
    down = rows[None] - rows[:, None] + height - 1
    right = columns[None] - columns[:, None] + width - 1
    return down * (2 * width - 1) + right


def resized_offsets(table, window, new_window):
    """A table of offsets for another window, interpolated linearly along both axes with the ends kept.

    Args:
        table: NumPy [(2h - 1)(2w - 1), H].
        window, new_window: (h, w).

    Returns:
        NumPy [(2h' - 1)(2w' - 1), H].
    """
    axes = []
    for old, new in zip(window, new_window):
        # Where there is no offset but 0, it stays the one in the middle.
        places = np.linspace(0, 2 * old - 2, 2 * new - 1) if new > 1 else np.array([old - 1])
        axes.append(np.stack([np.interp(places, np.arange(2 * old - 1), one) for one in np.eye(2 * old - 1)], axis=1))
    grid = np.reshape(table, [2 * window[0] - 1, 2 * window[1] - 1, -1])
    return np.einsum("yi,xj,ijh->yxh", *axes, grid).reshape(-1, grid.shape[-1])
