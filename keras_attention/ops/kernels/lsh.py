"""Attention inside hashed buckets (Reformer): similar directions meet, all others are left out."""

import math

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product
from keras_attention.ops.kernels import chunks

# In place of the score with oneself: no weight beside any other key, all of it where there is none.
SELF_SCORE = -1e9


def rotations(depth, num_hashes, num_buckets, seed):
    """Random directions for `bucket_of`: NumPy float32 [num_hashes, depth, num_buckets / 2] (1 for one bucket)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_hashes, depth, max(1, num_buckets // 2))).astype("float32")


def bucket_of(x, directions, num_buckets):
    """The bucket of each vector in each round: the direction, or its opposite, along which it points most.

    Args:
        x: [B, H, T, D]; directions: [R, D, num_buckets / 2].

    Returns:
        int32 [B, H, R, T], in 0 .. num_buckets - 1.
    """
    along = tf.matmul(x[:, :, None], directions)  # [B, H, R, T, num_buckets / 2]
    if num_buckets == 1:
        return tf.zeros(checks.sizes(along)[:-1], tf.int32)
    return tf.argmax(tf.concat([along, -along], axis=-1), axis=-1, output_type=tf.int32)


def lsh_attention(
    q,
    v,
    directions,
    *,
    num_buckets,
    bucket_size=64,
    padding_mask=None,
    query_mask=None,
    use_causal_mask=False,
    scale=None,
):
    """Softmax attention of each query to the keys near it in its bucket, q serving as query and key (Reformer).

    Keys are q divided by its length. In every round a token meets the members of its bucket that stand at most
    `bucket_size` places from it among them (only earlier ones when causal); the result is the exact softmax over the
    tokens met in any round. A token attends to itself only when it meets no other.

    Cost O(R * T * (bucket_size + num_buckets) * D) for R rounds, and a sort of T numbers per head and round. Choose
    num_buckets near T / bucket_size: it is fixed, so that neither padding nor the future moves a token to another
    bucket.

    Args:
        q: [B, H, T, D], queries and keys in one.
        v: [B, H, T, Dv].
        directions: [R, D, num_buckets / 2] from `rotations`.
        num_buckets: 1, or an even number.
        bucket_size: reach inside a bucket, in members.
        padding_mask: boolean [B, T], True = a real token; the others are in no bucket and their rows are zero.
        query_mask: boolean [B, T]; rows where it is False are zero.
        use_causal_mask: whether only earlier tokens count.
        scale: factor on the scores; 1 / sqrt(D) by default.

    Returns:
        [B, H, T, Dv] in v's dtype, computed in at least float32.

    Reference: Kitaev et al., 2020, "Reformer", https://arxiv.org/abs/2001.04451. Where we differ: their chunks of the
    sorted sequence move with later tokens and with padding, so that a changed future reaches the past; our reach is
    counted inside the bucket, where nothing later changes anything.
    """
    q, v = tf.convert_to_tensor(q), tf.convert_to_tensor(v)
    dot_product.check_qkv(q, q, v)
    result, dtype = v.dtype, dot_product.accumulation_dtype(q.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, v = tf.cast(q, dtype), tf.cast(v, dtype)
    length = checks.sizes(q)[-2]
    k = _unit(q)
    buckets = bucket_of(tf.stop_gradient(k), tf.cast(directions, dtype), num_buckets)  # [B, H, R, T]
    if padding_mask is not None:
        buckets = tf.where(padding_mask[:, None, None, :], buckets, num_buckets)  # behind all others
    order = tf.argsort(buckets * length + tf.range(length), axis=-1)
    places = tf.argsort(order, axis=-1)
    # One number says whether two tokens meet: it differs by at most bucket_size exactly for members of one bucket that
    # stand so near. Zero stays free for "no key".
    codes = (buckets + 1) * (length + bucket_size + 1) + places
    key_codes = codes if padding_mask is None else tf.where(padding_mask[:, None, None, :], codes, 0)

    chunk = chunks.size_for(length, bucket_size)
    sorted_queries = [_sorted(x, order, chunk) for x in (q * tf.convert_to_tensor(scale, dtype), _last(codes))]
    sorted_keys = [_with_neighbours(_sorted(x, order, chunk), use_causal_mask) for x in (k, v, _last(key_codes))]
    (queries, query_codes), (keys, values, key_codes) = sorted_queries, sorted_keys  # [B, H, R, N, C | W, ...]
    met, once, alone = _meetings(query_codes, key_codes, bucket_size, use_causal_mask)
    scores = tf.matmul(queries, keys, transpose_b=True)
    scores = tf.where(alone, tf.cast(SELF_SCORE, dtype), scores)
    if once is not None:
        scores -= tf.math.log(tf.cast(once, dtype))
    lowest = tf.cast(-0.5 * dtype.max, dtype)
    total = tf.reduce_logsumexp(tf.where(met, scores, lowest), axis=-1, keepdims=True)  # [B, H, R, N, C, 1]
    rows = tf.matmul(dot_product.masked_softmax(scores, met), values)
    rows = _unsorted(rows, places, length)  # [B, H, R, T, Dv]
    share = tf.nn.softmax(_unsorted(total, places, length), axis=2)
    out = tf.reduce_sum(rows * share, axis=2)
    if query_mask is not None:
        out = tf.where(query_mask[:, None, :, None], out, 0)
    return tf.cast(out, result)


def _meetings(query_codes, key_codes, bucket_size, use_causal_mask):
    """Who meets whom, from the codes [B, H, R, N, C or W, R] of every round in the order of each.

    Returns:
        `(met, once, alone)`, each broadcastable to [B, H, R, N, C, W]: met in this round; the number of rounds in which
        they meet (at least 1), or None with one round; a token beside itself.
    """
    rounds = query_codes.shape[-1]
    counts, met = 0, []
    for r in range(rounds):
        behind = query_codes[..., r][..., :, None] - key_codes[..., r][..., None, :]
        near = tf.logical_and(behind >= (0 if use_causal_mask else -bucket_size), behind <= bucket_size)
        counts += tf.cast(near, tf.int32)
        met.append(near[:, :, r])
        alone = tf.equal(behind, 0)  # codes are unique: equal in one round, equal in all
    return tf.stack(met, axis=2), None if rounds == 1 else tf.maximum(counts, 1), alone


def _last(codes):
    """[B, H, R, T] -> [B, H, T, R]"""
    return tf.transpose(codes, [0, 1, 3, 2])


def _sorted(x, order, chunk):
    """x [B, H, T, X] in the order [B, H, R, T] of each round, in chunks: [B, H, R, N, chunk, X]."""
    batch, heads, rounds, length = checks.sizes(order)
    taken = _take_rows(x, tf.reshape(order, [batch, heads, rounds * length]))
    return chunks.split(tf.reshape(taken, [batch, heads, rounds, length, x.shape[-1]]), chunk)


def _unsorted(x, places, length):
    """[B, H, R, N, C, X] back to [B, H, R, T, X]."""
    return _take_rows(chunks.join(x, length), places)


def _take_rows(x, indices):
    """x [..., T, X], indices int32 [..., K] -> [..., K, X].

    By places in one flat table: tf2onnx turns a gather with several batch axes into a graph that onnxruntime refuses.
    """
    *leading, length, depth = checks.sizes(x)
    table = tf.reshape(x, [-1, depth])
    number = checks.sizes(indices)[-1]
    flat = tf.reshape(indices, [-1, number])
    flat += tf.range(tf.shape(flat)[0])[:, None] * length
    return tf.reshape(tf.gather(table, flat), [*leading, number, depth])


def _with_neighbours(x, only_before):
    """Each chunk with the one before it and, unless `only_before`, the next: [..., N, C, X] -> [..., N, W, X]."""
    zeros = tf.zeros_like(x[..., :1, :, :])
    before = tf.concat([zeros, x[..., :-1, :, :]], axis=-3)
    parts = [before, x] if only_before else [before, x, tf.concat([x[..., 1:, :, :], zeros], axis=-3)]
    return tf.concat(parts, axis=-2)


def _unit(x):
    """x / |x|; zero, with a finite gradient, for zero."""
    square = tf.reduce_sum(x * x, axis=-1, keepdims=True)
    some = square > 0
    return tf.where(some, x * tf.math.rsqrt(tf.where(some, square, 1)), 0)
