"""Decode state of a fixed size: the last W keys and values of each row, in a ring."""

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import blocks, windows


def init(batch, num_heads, window, key_dim, value_dim, dtype):
    """An empty ring.

    Args:
        batch, num_heads: B (an int or a scalar tensor) and H.
        window: W, how many keys are kept; a query sees itself and the W - 1 keys before it.
        key_dim, value_dim: D and Dv.
        dtype: of keys and values.

    Returns:
        {"key": [B, H, W, D], "value": [B, H, W, Dv], "lengths": int32 [B]}: the key of position p of a row lies in slot
        p mod W; lengths counts all positions so far, also those that were overwritten.
    """
    return {
        "key": tf.zeros([batch, num_heads, window, key_dim], dtype),
        "value": tf.zeros([batch, num_heads, window, value_dim], dtype),
        "lengths": tf.zeros([batch], tf.int32),
    }


def attend(q, k, v, state, *, padding_mask=None, distance_bias=None, scale=None, dropout_rate=0.0, dropout_seed=None):
    """Causal attention of new positions to themselves and the W - 1 positions before each, and the ring after them.

    A prompt in one piece, in pieces of any size, and single steps give the same rows. Time and memory O(T W); a single
    step costs O(W) however long the past is.

    Args:
        q: [B, H, T, D]; k: [B, Hkv, T, D]; v: [B, Hkv, T, Dv]: the new positions. Hkv divides H: query head h reads key
            head h // (H / Hkv).
        state: from `init` or an earlier call.
        padding_mask: boolean [B, T], True = a real position. The others are not stored, take no position and their rows
            are zero; they may stand before, after or between the real ones.
        distance_bias: None, or a function from int32 [B or 1, 1, ...], key position minus query position, to numbers
            [B or 1, H, ...] that are added to the scores.
        scale, dropout_rate, dropout_seed: see `windows.local`.

    Returns:
        `(out, state)`: out [B, H, T, Dv] in q's dtype.
    """
    options = dict(scale=scale, dropout_rate=dropout_rate, dropout_seed=dropout_seed)
    if q.shape[2] == 1:
        return _step(q, k, v, state, padding_mask, distance_bias, options)
    window = state["key"].shape[2]
    batch, _, length, _ = checks.sizes(q)
    lengths = state["lengths"]
    if padding_mask is None:
        count = tf.fill([batch], length)
        real = None
    else:
        order, rank, count = blocks.pack(padding_mask)
        q, k, v = (blocks.take(x, order[:, None]) for x in (q, k, v))
        real = tf.range(length) < count[:, None]
    # The past in order: its last entry is position lengths - 1. Adding window keeps the remainder's operand positive:
    # runtimes do not agree on negative ones.
    offset = tf.range(window)
    slots = (lengths[:, None] + offset) % window
    past = lengths[:, None] - window + offset >= 0
    new = tf.ones([batch, length], tf.bool) if real is None else real
    keys, values = (
        _for_all_heads(tf.concat([blocks.take(state[name], slots[:, None]), tf.cast(x, state[name].dtype)], axis=2), q)
        for name, x in (("key", k), ("value", v))
    )
    out = windows.local(
        q,
        keys,
        values,
        radius=window - 1,
        padding_mask=tf.concat([past, new], axis=1),
        use_causal_mask=True,
        distance_bias=distance_bias,
        **options,
    )
    if padding_mask is not None:
        out = blocks.unpacked(out, rank, count)
    return out, append(state, k, v, count)


def append(state, k, v, count):
    """The ring after the first `count` [B] of the new keys k [B, H, T, D] and values v [B, H, T, Dv] of each row."""
    window = state["key"].shape[2]
    lengths = state["lengths"][:, None]
    after = lengths + count[:, None]
    slot = tf.range(window)
    # The latest position that falls into each slot; below lengths it is an old one, which stays.
    position = after - 1 - (after - 1 - slot + window) % window
    index = tf.where(position >= lengths, window + position - lengths, slot)[:, None]
    return {
        "key": blocks.take(tf.concat([state["key"], tf.cast(k, state["key"].dtype)], axis=2), index),
        "value": blocks.take(tf.concat([state["value"], tf.cast(v, state["value"].dtype)], axis=2), index),
        "lengths": after[:, 0],
    }


def _step(q, k, v, state, padding_mask, distance_bias, options):
    """One position: written into its slot, after which the ring holds what it may see, in whatever order."""
    window = state["key"].shape[2]
    lengths = state["lengths"]
    slot = tf.range(window)
    here = slot == (lengths % window)[:, None]  # [B, W]
    grown = tf.ones_like(lengths)
    if padding_mask is not None:
        here = tf.logical_and(here, padding_mask)
        grown = tf.cast(padding_mask[:, 0], tf.int32)
    key, value = (
        tf.where(here[:, None, :, None], tf.cast(x, state[name].dtype), state[name])
        for name, x in (("key", k), ("value", v))
    )
    filled = slot < (lengths + grown)[:, None]
    if padding_mask is not None:
        filled = tf.logical_and(filled, padding_mask)
    # The query heads that share a key head are so many queries of it: no key is repeated.
    batch, heads, _, depth = checks.sizes(q)
    kv_heads = key.shape[1]
    grouped = tf.reshape(q, [batch, kv_heads, heads // kv_heads, depth])
    bias = None
    if distance_bias is not None:
        # The new position is `lengths`; the key in a slot is the latest at or before it that falls there.
        behind = (lengths[:, None] % window - slot + window) % window  # [B, W]
        bias = tf.reshape(distance_bias(-behind[:, None, None]), [batch, kv_heads, heads // kv_heads, window])
    out = blocks.attend(
        grouped, tf.cast(key, q.dtype), tf.cast(value, q.dtype), filled[:, None, None, :], bias=bias, **options
    )
    out = tf.reshape(out, [batch, heads, 1, value.shape[-1]])
    return out, {"key": key, "value": value, "lengths": lengths + grown}


def _for_all_heads(x, q):
    """x [B, Hkv, S, D] in q's dtype, its heads repeated to q's."""
    groups = q.shape[1] // x.shape[1]
    x = tf.cast(x, q.dtype)
    return x if groups == 1 else tf.repeat(x, groups, axis=1)
