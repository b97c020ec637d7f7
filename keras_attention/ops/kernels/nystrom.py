"""Softmax attention rebuilt from a few landmarks (Nystrom's method)."""

import math

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense import dot_product


def nystrom_attention(
    q, k, v, *, num_landmarks=64, iterations=6, kernel=None, padding_mask=None, query_mask=None, scale=None
):
    """softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v, with means of neighbouring tokens as landmarks q~, k~.

    Cost O((T + S) * M * D) for M landmarks. The landmarks are the means of M runs of real tokens whose lengths differ
    by at most one, for any T and S and wherever the padding stands; with no more tokens than landmarks each token is
    its own, and the result is softmax attention up to the pseudo-inverse.

    Args:
        q: [B, H, T, D]; k: [B, H, S, D]; v: [B, H, S, Dv].
        num_landmarks: M.
        iterations: steps of the pseudo-inverse. 6 are the paper's; each multiplies small singular values by about 3
            until they are near 1, then squares the error more than once. A landmark matrix of condition number 20
            is inverted to float32 after 12; rounding leaves an error of about 1e-6 times its condition number.
        kernel: None, or [width, H]: a convolution of v along S for each head, added to the result (the paper's local
            path; width odd, zeros outside). Needs q and k of one sequence.
        padding_mask: boolean [B, S], True = a real key.
        query_mask: boolean [B, T], True = a real query; rows of others are zero.
        scale: factor on the scores; 1 / sqrt(D) by default.

    Returns:
        [B, H, T, Dv] in q's dtype, computed in at least float32. Rows that may attend to nothing are zero.

    Reference: Xiong et al., 2021, "Nystromformer", https://arxiv.org/abs/2102.03902. Where we differ: the start of the
    pseudo-inverse is scaled for each matrix by itself, so that a sequence's result does not depend on its batch;
    padding takes no part in the landmarks. The document's softmax(QB) softmax(B^T K^T) lacks the middle factor.
    """
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    dot_product.check_qkv(q, k, v)
    result, dtype = q.dtype, dot_product.accumulation_dtype(q.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = tf.cast(q, dtype) * tf.convert_to_tensor(scale, dtype), tf.cast(k, dtype), tf.cast(v, dtype)
    keys = None if padding_mask is None else padding_mask[:, None, None, :]  # [B, 1, 1, S]
    queries = None if query_mask is None else query_mask[:, None, :, None]  # [B, 1, T, 1]
    q_runs, q_filled = landmark_runs(checks.sizes(q)[-2], num_landmarks, query_mask, dtype)  # [B|1, M, T], [B|1, M]
    k_runs, k_filled = landmark_runs(checks.sizes(k)[-2], num_landmarks, padding_mask, dtype)
    q_marks, k_marks = tf.matmul(q_runs[:, None], q), tf.matmul(k_runs[:, None], k)  # [B, H, M, D]
    q_filled, k_filled = q_filled[:, None, :, None], k_filled[:, None, None, :]
    left = _weights(q, k_marks, masks.joined(queries, k_filled))  # [B, H, T, M]
    middle = _weights(q_marks, k_marks, tf.logical_and(q_filled, k_filled))  # [B, H, M, M]
    right = _weights(q_marks, k, masks.joined(q_filled, keys))  # [B, H, M, S]
    out = tf.matmul(left, tf.matmul(pseudo_inverse(middle, iterations), tf.matmul(right, v)))
    if kernel is not None:
        out += _convolve(v if keys is None else tf.where(padding_mask[:, None, :, None], v, 0), tf.cast(kernel, dtype))
        out = out if queries is None else tf.where(queries, out, 0)
    return tf.cast(out, result)


def landmark_runs(length, num_landmarks, real, dtype):
    """The means that make landmarks, as a matrix.

    Args:
        length: T, an int or a scalar tensor.
        num_landmarks: M.
        real: boolean [B, T] or None.

    Returns:
        `(runs, filled)`: [B or 1, M, T], whose row m holds 1 / (size of run m) at the tokens of run m; and boolean
        [B or 1, M], False for landmarks left over where there are fewer tokens than landmarks.
    """
    real = tf.ones([1, length], tf.bool) if real is None else real
    rank = tf.cumsum(tf.cast(real, tf.int32), axis=1) - 1  # place among the real tokens
    count = rank[:, -1:] + 1
    run = rank * num_landmarks // tf.maximum(count, 1)
    # With fewer tokens than landmarks the runs would be spread out: the first `count` landmarks hold one token each.
    run = tf.where(count > num_landmarks, run, rank)
    member = tf.logical_and(tf.range(num_landmarks)[:, None] == run[:, None, :], real[:, None, :])
    sizes = tf.reduce_sum(tf.cast(member, dtype), axis=-1)
    return tf.cast(member, dtype) / tf.maximum(sizes, 1)[..., None], sizes > 0


def pseudo_inverse(a, iterations):
    """Moore-Penrose inverse of [..., M, M] by the third-order iteration of Razavi et al. (2014), matrix products only.

    Rows and columns that are all zero stay out of it: they are zero in the result.
    """
    magnitude = tf.abs(a)
    rows = tf.reduce_max(tf.reduce_sum(magnitude, axis=-1), axis=-1)  # largest row sum
    columns = tf.reduce_max(tf.reduce_sum(magnitude, axis=-2), axis=-1)
    bound = rows * columns
    bound = tf.where(bound > 0, bound, 1)[..., None, None]
    z = tf.linalg.matrix_transpose(a) / bound
    identity = tf.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(iterations):
        az = tf.matmul(a, z)
        z = 0.25 * tf.matmul(z, 13 * identity - tf.matmul(az, 15 * identity - tf.matmul(az, 7 * identity - az)))
    return z


def _weights(q, k, allowed):
    return dot_product.masked_softmax(tf.matmul(q, k, transpose_b=True), allowed)


def _convolve(v, kernel):
    """v [B, H, S, Dv] convolved along S with kernel [width, H], zeros outside."""
    batch, heads, length, depth = checks.sizes(v)
    image = tf.reshape(tf.transpose(v, [0, 2, 1, 3]), [batch, length, 1, heads * depth])
    filters = tf.repeat(kernel, depth, axis=1)[:, None, :, None]  # [width, 1, H * Dv, 1]
    image = tf.nn.depthwise_conv2d(image, filters, strides=[1, 1, 1, 1], padding="SAME")
    return tf.transpose(tf.reshape(image, [batch, length, heads, depth]), [0, 2, 1, 3])
