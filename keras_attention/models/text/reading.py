"""What the decoding states of all models have in common: how far each row has been read, and whether it fits."""

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.text.special_ids import PAD_ID

# What every layer's state holds alike; a model keeps it once.
SHARED = ("lengths", "valid")


def token_positions(ids):
    """int32 [B, T]: each token's place among the real tokens of its row, from 0, so that padding moves nothing."""
    return tf.maximum(tf.cumsum(tf.cast(tf.not_equal(ids, PAD_ID), tf.int32), axis=1) - 1, 0)


def own_part(state):
    """A layer's state without what the model keeps for all layers."""
    return {name: x for name, x in state.items() if name not in SHARED}


def empty_counts(batch, state):
    """The shared part of an empty state: "valid" beside a growing store of keys, otherwise "lengths"; and "overflow".

    Args:
        batch: number of rows.
        state: the empty state of a layer.
    """
    # Only a growing store of keys needs to know which of its places are real; for the others a number is enough.
    counts = "valid" if "valid" in state else "lengths"
    return {
        counts: tf.zeros([batch] if counts == "lengths" else [batch, 0], tf.int32),
        "overflow": tf.zeros([batch], tf.int32),
    }


class Reading:
    """New token ids on their way into a state.

    Args:
        ids: integer [B, T], 0 = padding, which is skipped.
        state: the model's state, with the shared part at its top.
        layers: list of pairs of a `MultiHeadAttention` and its own part of the state.

    Attributes:
        valid: boolean [B, T].
        positions: int32 [B, T].
        layer_states: list of the whole state of each layer, as it takes it.
        counts: the model's shared part afterwards, "overflow" included.
    """

    def __init__(self, ids, state, layers):
        self.valid = tf.not_equal(ids, PAD_ID)
        shared = {name: state[name] for name in SHARED if name in state}
        self.layer_states = [{**own, **shared} for _, own in layers]
        past = shared["lengths"] if "lengths" in shared else tf.reduce_sum(shared["valid"], axis=1)
        counts = tf.cumsum(tf.cast(self.valid, tf.int32), axis=1)
        # Padding stands where the last real token before it stands: it asks for no position past a full row's end.
        self.positions = tf.maximum(past[:, None] + counts - 1, 0)
        total = past + tf.reduce_sum(tf.cast(self.valid, tf.int32), axis=1)  # of no tokens there is no last count
        overflow = self._overflow(layers, total)
        if "lengths" in shared:
            self.counts = {"lengths": total if overflow is None else tf.where(overflow, past, total)}
        else:
            self.counts = {"valid": tf.concat([shared["valid"], tf.cast(self.valid, tf.int32)], axis=1)}
        flags = state["overflow"]
        self.counts["overflow"] = flags if overflow is None else tf.maximum(flags, tf.cast(overflow, tf.int32))

    def _overflow(self, layers, total):
        """Boolean [B], rows that would run past the end of a layer's state; None where no state has an end."""
        overflow = None
        for (attention, _), state in zip(layers, self.layer_states, strict=True):
            capacity = attention.mechanism.capacity(state)
            if capacity is not None:
                beyond = total > capacity
                overflow = beyond if overflow is None else tf.logical_or(overflow, beyond)
        return overflow


def checked_batch(batch_size):
    """The number of rows as `init_state` takes it: an int of at least 1, or a scalar integer tensor."""
    return batch_size if tf.is_tensor(batch_size) else checks.positive_int("batch_size", batch_size)
