"""Attention to a fixed number of learned mixtures of the keys."""

import math

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product


def linformer_attention(q, k, v, key_rows, value_rows, *, padding_mask=None, query_mask=None, scale=None):
    """softmax(q (E^T k)^T * scale) (F^T v): S keys become R mixtures, whose weights depend on the place alone.

    Cost O((T + S) * R * D). Choose it for encoders whose lengths have a known limit. A place is counted among the real
    tokens, so that padding on either side changes nothing.

    Args:
        q: [B, H, T, D]; k: [B, H, S, D]; v: [B, H, S, Dv].
        key_rows: E, [L, R] shared by the heads or [H, L, R]: row i mixes the i-th real key in. S may not exceed L.
        value_rows: F, likewise.
        padding_mask: boolean [B, S], True = a real key.
        query_mask: boolean [B, T], True = a real query; rows of others are zero.
        scale: factor on the scores; 1 / sqrt(D) by default.

    Returns:
        [B, H, T, Dv] in q's dtype, computed in at least float32. Rows of a sequence without any key are zero.

    Raises:
        ValueError: where S is known and exceeds L. Where it is not, the graph stops with InvalidArgumentError; compiled
            and exported graphs, which drop such checks, give NaN.

    Reference: Wang et al., 2020, "Linformer", https://arxiv.org/abs/2006.04768
    """
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    dot_product.check_qkv(q, k, v)
    result, dtype = q.dtype, dot_product.accumulation_dtype(q.dtype)
    length, limit = checks.sizes(k)[-2], key_rows.shape[-2]
    message = f"linformer mixes at most max_length={limit} keys"
    if isinstance(length, int):
        if length > limit:
            raise ValueError(
                f"{message}. Got {length}; build it with a larger max_length, cut the input, or use "
                'mechanism="nystrom" or "linear", which take any length.'
            )
    else:
        tf.debugging.assert_less_equal(length, limit, f"{message}: build it with a larger max_length.")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = (tf.cast(x, dtype) for x in (q, k, v))
    if padding_mask is not None:
        keep = padding_mask[:, None, :, None]
        k, v = tf.where(keep, k, 0), tf.where(keep, v, 0)
    keys = _mix(k, tf.cast(key_rows, dtype), padding_mask)  # [B, H, R, D]
    values = _mix(v, tf.cast(value_rows, dtype), padding_mask)  # [B, H, R, Dv]
    scores = tf.matmul(q * tf.convert_to_tensor(scale, dtype), keys, transpose_b=True)  # [B, H, T, R]
    # Without any key the mixtures of values are zero, and with them the row and its gradients.
    out = tf.matmul(tf.nn.softmax(scores), values)
    if query_mask is not None:
        out = tf.where(query_mask[:, None, :, None], out, 0)
    if not isinstance(length, int):
        out = tf.where(length <= limit, out, tf.constant(float("nan"), dtype))
    return tf.cast(out, result)


def _mix(x, rows, padding_mask):
    """x [B, H, S, D], rows [L, R] or [H, L, R] -> [B, H, R, D]."""
    heads, length = rows.shape.rank == 3, checks.sizes(x)[-2]
    if padding_mask is None:
        places = tf.range(length)
        # A gather by clamped places, not a slice: a slice would be too short beyond the limit and fail where the
        # caller promises NaN.
        picked = tf.gather(rows, tf.minimum(places, rows.shape[-2] - 1), axis=-2)  # [(H,) S, R]
        return tf.matmul(picked if heads else picked[None], x, transpose_a=True)
    places = tf.maximum(tf.cumsum(tf.cast(padding_mask, tf.int32), axis=1) - 1, 0)
    picked = tf.gather(rows, tf.minimum(places, rows.shape[-2] - 1), axis=-2)  # [(H,) B, S, R]
    picked = tf.transpose(picked, [1, 0, 2, 3]) if heads else picked[:, None]
    return tf.matmul(picked, x, transpose_a=True)
