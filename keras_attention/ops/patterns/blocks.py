"""Cutting a sequence into blocks, and attention between blocks that were brought together.

The patterns (windows, block-sparse, BigBird, Longformer) never build a [T, S] table: they cut the sequence into blocks
of C positions, lay the keys that each block may see side by side, and attend inside.
"""

import math

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product
from keras_attention.ops.dense.dropout import dropped


def ceil_divide(length, size):
    """ceil(length / size) for ints or scalar tensors."""
    return -(-length // size) if isinstance(length, int) and isinstance(size, int) else (length + size - 1) // size


def minimum(a, b):
    """The smaller of two ints, or a scalar tensor where one of them is a tensor."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tf.minimum(a, b)


def maximum(a, b):
    """The larger of two ints, or a scalar tensor where one of them is a tensor."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tf.maximum(a, b)


def block_size_for(length, block_size):
    """`block_size`, or the length where that is shorter, so that short sequences are not padded to a whole block."""
    return maximum(minimum(length, block_size), 1)


def padded(x, axis, before, after):
    """`x` with zeros (False) added before and after one axis."""
    if isinstance(before, int) and isinstance(after, int) and before == after == 0:
        return x
    paddings = [[0, 0] for _ in range(x.shape.rank)]
    paddings[axis] = [before, after]
    return tf.pad(x, paddings)


def split(x, axis, count, size):
    """Cuts one axis of length count * size into two: [..., count, size, ...]."""
    shape = checks.sizes(x)
    axis %= x.shape.rank
    return tf.reshape(x, [*shape[:axis], count, size, *shape[axis + 1 :]])


def merge(x, axis):
    """Joins `axis` and the one after it."""
    shape = checks.sizes(x)
    return tf.reshape(x, [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]])


def side_by_side(blocks, axis, count, neighbours):
    """For each of `count` blocks, the `neighbours` consecutive blocks from its own index on, joined into one.

    Args:
        blocks: [..., count + neighbours - 1, C, ...], blocks counted along `axis`.

    Returns:
        [..., count, neighbours * C, ...].
    """
    if neighbours == 1:
        return blocks
    before = [slice(None)] * axis
    shifted = [blocks[(*before, slice(i, i + count))] for i in range(neighbours)]
    return tf.concat(shifted, axis=axis + 1)


def attend(q, k, v, allowed, *, bias=None, scale=None, dropout_rate=0.0, dropout_seed=None):
    """Softmax attention over the last two axes with leading axes of any rank, zero rows where nothing is allowed.

    Args:
        q: [..., C, D]; k, v: [..., M, D]; allowed: boolean, broadcastable to [..., C, M].
        bias: None, or finite numbers to add to the scores, broadcastable alike.

    Returns:
        [..., C, Dv] in q's dtype.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = _scores(q, k, scale, bias)
    weights = dropped(dot_product.masked_softmax(scores, allowed), dropout_rate, dropout_seed)
    return dot_product.weighted_sum(weights, v)


def attend_together(q, parts, *, scale=None, dropout_rate=0.0, dropout_seed=None):
    """One softmax over several groups of keys, without laying the groups side by side.

    Args:
        q: [B, H, N, C, D], queries in blocks.
        parts: list of (k, v, allowed, bias). k and v are [B, H, N, M, D], a group for each block, or [B, H, G, D], one
            group that all queries share; allowed is boolean, broadcastable to [B, H, N, C, M] (or G); bias is None, or
            finite numbers that broadcast alike.

    Returns:
        [B, H, N, C, Dv] in q's dtype.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    count, size = checks.sizes(q)[2:4]
    scores, widths, some = [], [], None
    for k, _, allowed, bias in parts:
        if k.shape.rank == 4:
            # Joined, so that the shared keys are not copied to every block (nor is their gradient).
            part = split(_scores(merge(q, 2), k, scale), 2, count, size)
            part = part if bias is None else part + tf.cast(bias, part.dtype)
        else:
            part = _scores(q, k, scale, bias)
        # Blocked group by group: one joined mask would have to be as large as the scores. Half of the range below, as
        # in `masked_softmax`.
        scores.append(tf.where(allowed, part, tf.constant(0.5 * part.dtype.min, part.dtype)))
        widths.append(checks.sizes(part)[-1])
        open_rows = tf.reduce_any(allowed, axis=-1, keepdims=True)
        some = open_rows if some is None else tf.logical_or(some, open_rows)
    weights = tf.nn.softmax(tf.concat(scores, axis=-1))
    weights = dropped(weights, dropout_rate, dropout_seed)
    out, start = None, 0
    for (k, v, *_), width in zip(parts, widths):
        part = weights[..., start : start + width]
        start += width
        if k.shape.rank == 4:
            part = split(dot_product.weighted_sum(merge(part, 2), v), 2, count, size)
        else:
            part = dot_product.weighted_sum(part, v)
        out = part if out is None else out + part
    return tf.where(some, out, tf.zeros([], out.dtype))


def _scores(q, k, scale, bias=None):
    scores = dot_product.biased_scores(q, k, scale)[0]
    return scores if bias is None else scores + tf.cast(bias, scores.dtype)


def pack(valid):
    """The permutation that moves the True positions of each row to the front and keeps both kinds in order.

    With it a pattern that counts blocks or positions from the first real token gives the same answer whatever the
    padding: left, right or in between.

    Args:
        valid: boolean [B, S].

    Returns:
        `(order, rank, count)`, int32 [B, S], [B, S], [B]: order[b, i] is the position of the i-th item, rank its
        inverse (where position s went), count the number of True.
    """
    ones = tf.cast(valid, tf.int32)
    real = tf.cumsum(ones, axis=1)
    count = real[:, -1:]
    others = tf.cumsum(1 - ones, axis=1)
    rank = tf.where(valid, real - 1, count + others - 1)
    return tf.argsort(rank, axis=1), rank, tf.reduce_sum(ones, axis=1)


def take(x, index):
    """Rows of each batch item and head.

    Args:
        x: [B, H, S, ...].
        index: int32 [B or 1, H or 1, ...], positions on the axis S.

    Returns:
        [B, H, *index.shape[2:], *x.shape[3:]].
    """
    batch, heads, length, *rest = checks.sizes(x)
    # One gather along a flat axis: gathers with batch axes are slower, forward and backward.
    start = tf.reshape(tf.range(batch * heads) * length, [batch, heads, *[1] * (index.shape.rank - 2)])
    return tf.gather(tf.reshape(x, [batch * heads * length, *rest]), start + index)


def unpacked(x, rank, count):
    """Undoes `pack` on x [B, H, T, ...], with zeros in the rows that were not real."""
    real = (rank < count[:, None])[:, None, :, None]
    return tf.where(real, take(x, rank[:, None]), tf.zeros([], x.dtype))
