"""A sliding window together with a few tokens that see everything and that everything sees."""

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense import dot_product, dropout_bits
from keras_attention.ops.patterns import blocks, windows


def first_tokens(count, padding_mask, length):
    """Marks the first `count` real tokens of each row as global.

    Args:
        count: Python int.
        padding_mask: boolean [B, T], True = a real token, or None where all are.
        length: T.

    Returns:
        Boolean [B or 1, T].
    """
    if padding_mask is None:
        return (tf.range(length) < count)[None]
    seen = tf.cumsum(tf.cast(padding_mask, tf.int32), axis=1)
    return tf.logical_and(padding_mask, seen <= count)


def longformer(
    q,
    k,
    v,
    q_global,
    k_global,
    v_global,
    *,
    radius,
    global_mask,
    max_global,
    padding_mask=None,
    use_causal_mask=False,
    distance_bias=None,
    scale=None,
    dropout_rate=0.0,
    dropout_seed=None,
):
    """Softmax attention to the neighbours within `radius` and to global tokens, which themselves see everything.

    A token that is not global sees, in one softmax, its window and the global tokens, by q, k and v. A global token
    sees all tokens, by q_global, k_global and v_global: projections of its own, as in the paper. Time and memory
    O(T (radius + G)).

    Args:
        q, k, v, q_global, k_global, v_global: [B, H, T, D] of one sequence.
        radius: see `windows.local`.
        global_mask: boolean [B or 1, T], True = global; see `first_tokens`.
        max_global: G, the largest number of global tokens in a row. A Python int; XLA needs to know it.
        padding_mask: boolean [B, T], True = a real key. Padding is never global.
        use_causal_mask: nothing ahead is seen, by global tokens neither; the window is i - radius <= j <= i.
        distance_bias: None, or a function from int32 [B or 1, 1, ...], key place minus query place, to numbers
            [B or 1, H, ...] that are added to the scores.
        scale, dropout_rate, dropout_seed: see `windows.local`.

    Returns:
        [B, H, T, D] in q's dtype; rows without a key are zero. A row of the batch with more than `max_global` global
        tokens is NaN in a graph.

    Raises:
        ValueError: in eager code, for more than `max_global` global tokens.

    Reference: Beltagy et al., "Longformer: The Long-Document Transformer", 2020, https://arxiv.org/abs/2004.05150
    """
    dot_product.check_qkv(q, k, v)
    windows.check_one_sequence("longformer", q, k)
    length = checks.sizes(q)[2]
    if padding_mask is not None:
        global_mask = tf.logical_and(global_mask, padding_mask)
    order, rank, count = blocks.pack(global_mask)
    _check_count(count, max_global)
    index = order[:, :max_global]  # [B or 1, G]
    real = tf.range(checks.sizes(index)[1]) < count[:, None]
    options = dict(scale=scale, dropout_rate=dropout_rate)

    layout = windows.BandLayout(length, length, before=radius, after=0 if use_causal_mask else radius)
    local_keys = tf.logical_not(global_mask)
    if padding_mask is not None:
        local_keys = tf.logical_and(local_keys, padding_mask)
    window = masks.joined(layout.band(), layout.key_mask(local_keys)[:, None, :, None, :])
    shared = real[:, None, None, None, :]
    ahead = index[:, None, None, None, :] - layout.query_places()[..., None]  # [B or 1, 1, N, C, G]
    if use_causal_mask:
        shared = masks.joined(shared, ahead <= 0)
    shared_bias = None if distance_bias is None else distance_bias(ahead)
    parts = [
        (layout.keys(k), layout.keys(v), window, layout.bias(distance_bias)),
        (blocks.take(k, index[:, None]), blocks.take(v, index[:, None]), shared, shared_bias),
    ]
    out = layout.rows(blocks.attend_together(layout.queries(q), parts, dropout_seed=dropout_seed, **options))

    allowed = real[:, None, :, None]
    if padding_mask is not None:
        allowed = masks.joined(allowed, padding_mask[:, None, None, :])
    ahead = tf.range(length) - index[:, None, :, None]  # [B or 1, 1, G, T]
    if use_causal_mask:
        allowed = masks.joined(allowed, ahead <= 0)
    own_seed = dropout_bits.stream(dropout_seed, 1)
    own_bias = None if distance_bias is None else distance_bias(ahead)
    rows = blocks.attend(
        blocks.take(q_global, index[:, None]),
        k_global,
        v_global,
        allowed,
        bias=own_bias,
        dropout_seed=own_seed,
        **options,
    )
    slot = tf.minimum(rank, blocks.maximum(checks.sizes(index)[1] - 1, 0))
    out = tf.where(global_mask[:, None, :, None], blocks.take(rows, slot[:, None]), out)
    too_many = (count > max_global)[:, None, None, None]
    return tf.where(too_many, tf.constant(float("nan"), out.dtype), out)


def _check_count(count, max_global):
    if checks.is_concrete(count) and int(tf.reduce_max(count)) > max_global:
        raise ValueError(
            f"longformer was set up for at most {max_global} global tokens a row. Got {int(tf.reduce_max(count))}: "
            "raise num_global or mark fewer."
        )
