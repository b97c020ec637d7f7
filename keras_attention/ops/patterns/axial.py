"""Attention along the axes of an image or a volume, one axis after the other."""

import math

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product, dropout_bits
from keras_attention.ops.patterns import blocks


def axial(
    q,
    k,
    v,
    *,
    shape,
    num_class_tokens=0,
    padding_mask=None,
    scale=None,
    dropout_rate=0.0,
    dropout_seed=None,
):
    """Softmax attention along the last axis of a grid (inside rows), then along the one before (columns), and so on.

    What the first pass gives is the second pass's values; q and k are the same in all: A_columns A_rows v. After all
    passes every position has heard from the whole grid. Time and memory O(T (height + width)), against O(T^2).

    Args:
        q, k: [B, H, T, D]; v: [B, H, T, Dv]: one sequence that holds the grid in row-major order.
        shape: sizes of the grid, 2 or 3 ints; (height, width) or (depth, height, width).
        num_class_tokens: tokens before the grid. They see everything at once, and every position of the grid sees them
            in each pass, beside its line.
        padding_mask: boolean [B, T], True = a real key.
        scale, dropout_rate, dropout_seed: see `windows.local`.

    Returns:
        [B, H, T, Dv] in q's dtype; rows without a key are zero.

    Raises:
        ValueError: where a static T is not num_class_tokens + the size of the grid.

    Reference: Ho et al., "Axial Attention in Multidimensional Transformers", 2019, https://arxiv.org/abs/1912.12180.
    There each axis is a layer with its own projections; here one layer covers all axes with one set of them.
    """
    dot_product.check_qkv(q, k, v)
    batch, heads, length, _ = checks.sizes(q)
    cells = math.prod(shape)
    if isinstance(length, int) and length != cells + num_class_tokens:
        raise ValueError(
            f"axial attention was set up for a grid of {' x '.join(map(str, shape))} = {cells} positions and "
            f"{num_class_tokens} class tokens. Got a sequence of {length}: fit shape= and num_class_tokens=, or use "
            "softmax attention."
        )
    n = num_class_tokens
    real = tf.ones([1, length], tf.bool) if padding_mask is None else padding_mask
    grid_keys = tf.reshape(real[:, n:], [-1, 1, *shape])
    options = dict(scale=scale, dropout_rate=dropout_rate)
    grid_q, grid_k, out = (tf.reshape(x[:, :, n:], [batch, heads, *shape, x.shape[-1]]) for x in (q, k, v))
    rank = len(shape)
    for number, axis in enumerate(reversed(range(rank))):
        # The axis goes next to the last place, and back: lines are then the rows of one batched product.
        order = [0, 1, *[2 + i for i in range(rank) if i != axis], 2 + axis]
        back = sorted(range(rank + 2), key=order.__getitem__)
        lines_q, lines_k, lines_v = (tf.transpose(x, [*order, rank + 2]) for x in (grid_q, grid_k, out))
        allowed = tf.transpose(grid_keys, order)[..., None, :]
        if n:
            lines_k, lines_v, allowed = _with_class_tokens(lines_k, lines_v, allowed, k, v, real, n)
        seed = dropout_bits.stream(dropout_seed, number)
        lines = blocks.attend(lines_q, lines_k, lines_v, allowed, dropout_seed=seed, **options)
        out = tf.transpose(lines, [*back, rank + 2])
    out = tf.reshape(out, [batch, heads, cells, v.shape[-1]])
    if not n:
        return out
    seed = dropout_bits.stream(dropout_seed, rank)
    first = blocks.attend(q[:, :, :n], k, v, real[:, None, None, :], dropout_seed=seed, **options)
    return tf.concat([first, out], axis=2)


def _with_class_tokens(lines_k, lines_v, allowed, k, v, real, n):
    """Puts the first n keys and values of the sequence in front of every line [B, H, ..., L, D]."""

    def joined(lines, sequence):
        *outer, _, depth = checks.sizes(lines)
        tokens = tf.reshape(sequence[:, :, :n], [*outer[:2], *[1] * (len(outer) - 2), n, depth])
        return tf.concat([tf.broadcast_to(tokens, [*outer, n, depth]), lines], axis=-2)

    outer = checks.sizes(allowed)[:-1]
    tokens = tf.reshape(real[:, :n], [outer[0], *[1] * (len(outer) - 1), n])
    allowed = tf.concat([tf.broadcast_to(tokens, [*outer, n]), allowed], axis=-1)
    return joined(lines_k, k), joined(lines_v, v), allowed
