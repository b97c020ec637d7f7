"""Attention to a few keys drawn at random, and the drawing itself: a function of a seed and positions."""

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product
from keras_attention.ops.patterns import blocks

# Arithmetic modulo a Mersenne prime stays inside int64 and is the same in eager code, XLA, ONNX and on every device,
# which random operations are not. x -> x^5 is a permutation modulo this prime (5 does not divide PRIME - 1).
PRIME = 2**31 - 1
_ROUND_CONSTANTS = (1013904223, 362437069, 1779033703)


def hashed(seed, *indices):
    """Pseudo-random integers from a seed and any number of indices.

    Args:
        seed: a Python int.
        indices: integer tensors >= 0 that broadcast together.

    Returns:
        int64 of the broadcast shape, in [0, PRIME).
    """
    x = tf.constant(seed % PRIME, tf.int64)
    for index in indices:
        x = (x + tf.cast(index, tf.int64)) % PRIME
        for constant in _ROUND_CONSTANTS:
            y = (x + constant) % PRIME
            square = y * y % PRIME
            x = square * square % PRIME * y % PRIME
    return x


def one_of_each_share(draw, available, shares):
    """Cuts [0, available) into `shares` equal shares and draws one number from each, so that all are different.

    Args:
        draw: int64 [..., shares] from `hashed`.
        available: int32, broadcastable to [..., 1].
        shares: a Python int.

    Returns:
        `(choice, chosen)`: int32 [..., shares], and boolean, False where the share was empty. With `available` of at
        most `shares` every number is chosen once.
    """
    available = tf.cast(available, tf.int64)
    slots = tf.range(shares, dtype=tf.int64)
    start = slots * available // shares
    width = (slots + 1) * available // shares - start
    choice = start + draw % tf.maximum(width, 1)
    return tf.cast(choice, tf.int32), tf.broadcast_to(width > 0, tf.shape(choice))


def random_attention(
    q,
    k,
    v,
    *,
    num_keys,
    seed=0,
    padding_mask=None,
    query_padding=None,
    query_positions=None,
    use_causal_mask=False,
    distance_bias=None,
    scale=None,
    dropout_rate=0.0,
    dropout_seed=None,
):
    """Softmax attention of each query to `num_keys` keys drawn at random.

    The keys a query may see are cut into `num_keys` stretches, and one key is drawn from each: all different. Lengths
    of stretches differ by one at most, so that every key is about as likely as any other where there are many times
    `num_keys`; of few more, those that are alone in a stretch are always drawn. The draw depends on the seed, the head
    and the position of the query, counted without padding: not on the batch, the process or the runtime. Keys are
    gathered as [B, H, T, num_keys, D]: time and memory O(T num_keys), without a [T, S] table. A query with `num_keys`
    keys or fewer to choose from sees all of them.

    Args:
        q: [B, H, T, D].
        k: [B, H, S, D].
        v: [B, H, S, Dv].
        num_keys: R, keys per query.
        seed: Python int.
        padding_mask: boolean [B, S], True = a real key; only those are drawn.
        query_padding: boolean [B, T], True = a real query; only those are counted, the rows of others are zero. Inside
            one sequence give the padding mask here too.
        query_positions: int32 [B, T], positions of the queries among the real keys, for caches; -1 = before the first.
            Counted from `query_padding`, or simply 0 .. T - 1, where not given.
        use_causal_mask: query t draws from the keys up to t + S - T, or up to its `query_positions`.
        distance_bias: None, or a function from int32 [B or 1, H, T, R], key position minus query position among the
            real tokens, to numbers of that shape that are added to the scores.
        scale, dropout_rate, dropout_seed: see `windows.local`.

    Returns:
        [B, H, T, Dv] in q's dtype; rows without a key are zero.

    Reference: the documents, 5.1; the random part of Zaheer et al., "Big Bird", 2020, https://arxiv.org/abs/2007.14062
    """
    dot_product.check_qkv(q, k, v)
    heads, queries = checks.sizes(q)[1:3]
    keys = checks.sizes(k)[2]
    if query_positions is not None:
        position = query_positions  # [B, T]
    elif query_padding is not None:
        position = blocks.pack(query_padding)[1]
    else:
        position = tf.range(queries)[None]
    order, available = None, tf.reshape(keys, [1, 1])
    if padding_mask is not None:
        order, _, count = blocks.pack(padding_mask)
        available = count[:, None]
    if use_causal_mask:
        last = tf.range(queries)[None] + keys - queries
        if query_positions is not None:
            available = tf.minimum(available, query_positions + 1)
        elif padding_mask is None:
            available = tf.maximum(last + 1, 0)
        else:
            # As many keys as are real up to there: with the counts of none in front, one place further.
            seen = tf.pad(tf.cumsum(tf.cast(padding_mask, tf.int32), axis=1), [[0, 0], [1, 0]])
            available = tf.gather(seen, tf.maximum(last[0] + 1, 0), axis=1)
    draw = hashed(
        seed,
        tf.range(heads)[None, :, None, None],
        tf.maximum(position, 0)[:, None, :, None],
        tf.range(num_keys)[None, None, None, :],
    )
    choice, chosen = one_of_each_share(draw, available[:, None, :, None], num_keys)
    index = tf.where(chosen, choice, 0)  # [B or 1, H, T, R]
    bias = None
    if distance_bias is not None:
        bias = distance_bias(index - position[:, None, :, None])[:, :, :, None, :]
    if order is not None:
        index = tf.gather(order, index, axis=1, batch_dims=1)
    if query_padding is not None:
        chosen = tf.logical_and(chosen, query_padding[:, None, :, None])
    return blocks.attend(
        q[:, :, :, None, :],
        blocks.take(k, index),
        blocks.take(v, index),
        chosen[:, :, :, None, :],
        bias=bias,
        scale=scale,
        dropout_rate=dropout_rate,
        dropout_seed=dropout_seed,
    )[:, :, :, 0, :]
