"""Keys and values of what was read so far: a store that grows, and one of fixed size with a length per row.

A store is a dict of plain, dense, batch-first tensors:

    growing   {"key": [B, H, P, D], "value": [B, H, P, Dv], "valid": int32 [B, P]}   1 = a real key
    fixed     {"key": [B, H, C, D], "value": [B, H, C, Dv], "lengths": int32 [B]}    slots 0 .. lengths - 1 are filled

The growing store keeps padding where it came and marks it; the fixed one packs each row's real tokens, so that slot =
position whichever side was padded. Neither ever writes past its end.
"""

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import blocks


def growing(batch_size, num_heads, head_dim, dtype, value_dim=None):
    """An empty growing store."""
    return {
        "key": tf.zeros([batch_size, num_heads, 0, head_dim], dtype),
        "value": tf.zeros([batch_size, num_heads, 0, value_dim or head_dim], dtype),
        "valid": tf.zeros([batch_size, 0], tf.int32),
    }


def fixed(batch_size, num_heads, head_dim, dtype, capacity, value_dim=None):
    """An empty store of `capacity` slots per row."""
    return {
        "key": tf.zeros([batch_size, num_heads, capacity, head_dim], dtype),
        "value": tf.zeros([batch_size, num_heads, capacity, value_dim or head_dim], dtype),
        "lengths": tf.zeros([batch_size], tf.int32),
    }


def append(store, k, v, valid):
    """Adds T new tokens to either kind of store.

    Args:
        store: see the module.
        k, v: [B, H, T, D], [B, H, T, Dv]; T may be 0.
        valid: boolean [B, T], True = a real token, or None where all are.

    Returns:
        `(store, padding, query_positions, overflow)`: the new store; boolean [B, S] of the keys that exist; int32
        [B, T], the index on the key axis up to which each new token may look; boolean [B], rows that did not fit: they
        keep their store unchanged (None where the kind of store has no end).
    """
    batch, _, length, _ = checks.sizes(k)
    if valid is None:
        valid = tf.ones([batch, length], tf.bool)
    return (_append_fixed if "lengths" in store else _append_growing)(store, k, v, valid)


def _append_growing(store, k, v, valid):
    past = checks.sizes(store["key"])[2]
    new = {name: tf.cast(x, store[name].dtype) for name, x in (("key", k), ("value", v), ("valid", valid))}
    if store["key"].shape[2] != 0:
        # tf2onnx writes an axis known to be empty as a 0 that onnxruntime reads as "keep": a key nobody wrote.
        new = {name: tf.concat([store[name], x], axis=1 if name == "valid" else 2) for name, x in new.items()}
    batch, length = checks.sizes(valid)
    positions = tf.broadcast_to(past + tf.range(length), [batch, length])
    return new, tf.not_equal(new["valid"], 0), positions, None


def _append_fixed(store, k, v, valid):
    capacity = checks.sizes(store["key"])[2]
    lengths = store["lengths"]
    counts = tf.cumsum(tf.cast(valid, tf.int32), axis=1)  # [B, T]
    total = lengths + tf.reduce_sum(tf.cast(valid, tf.int32), axis=1)
    overflow = total > capacity
    if checks.is_concrete(overflow) and bool(tf.reduce_any(overflow)):
        raise ValueError(
            f"The decoding state is full: it holds {capacity} positions and row {int(tf.argmax(overflow))} needs "
            f"{int(tf.reduce_max(total))}. Make it with a larger max_length, or stop earlier."
        )
    places = lengths[:, None] + counts - 1
    # A padded query stands where the last real token before it stands, and every query inside the store: a row that
    # does not fit must not make a gather fail, which would stop the other rows too.
    positions = tf.minimum(tf.maximum(places, 0), capacity - 1)
    fits = tf.logical_not(overflow)[:, None]
    rank = tf.range(capacity)[None] - lengths[:, None]  # [B, C]: which of the new tokens a slot is for
    if valid.shape[1] == 1:
        hit = (rank == 0) & valid & fits
        new_k, new_v = k, v  # broadcast over the slots
    else:
        # A gather, so that no index can clamp or wrap, and nothing of C x T.
        order, _, count = blocks.pack(valid)
        hit = (rank >= 0) & (rank < count[:, None]) & fits
        if not valid.shape[1]:  # 0, or perhaps 0: there must be something to gather
            order = blocks.padded(order, 1, 0, 1)
            k, v = blocks.padded(k, 2, 0, 1), blocks.padded(v, 2, 0, 1)
        source = tf.gather(order, tf.clip_by_value(rank, 0, checks.sizes(k)[2] - 1), axis=1, batch_dims=1)
        new_k, new_v = blocks.take(k, source[:, None]), blocks.take(v, source[:, None])
    hit4 = hit[:, None, :, None]
    new = {
        "key": tf.where(hit4, tf.cast(new_k, store["key"].dtype), store["key"]),
        "value": tf.where(hit4, tf.cast(new_v, store["value"].dtype), store["value"]),
        "lengths": tf.where(overflow, lengths, total),
    }
    return new, tf.range(capacity)[None] < new["lengths"][:, None], positions, overflow


def reorder(state, parents):
    """Rows `parents` (int32 [B']) of every tensor of a state, whatever its nesting; B' may differ from B."""
    return tf.nest.map_structure(lambda x: tf.gather(x, parents, axis=0), state)
