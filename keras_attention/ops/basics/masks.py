"""The one place where masks are read, built and joined.

Inside the package a mask is boolean and True means "may attend". What users give (documents' floating masks, padding
masks, Keras' implicit masks, the causal flag) is turned into an `AttentionMask` once, and every mechanism reads that.
"""

import dataclasses
import warnings

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks


class MaskConventionWarning(UserWarning):
    """A floating mask was read in the documents' sense: nonzero = blocked."""


def look_ahead_mask(query_length, key_length=None):
    """The causal mask: position t may attend to itself and to what came before.

    Aligned bottom-right: with more keys than queries the last query sees the last key, as in a decoding step with a
    cache; with fewer keys the first `query_length - key_length` rows may attend to nothing.

    Args:
        query_length: T, an int or a scalar tensor.
        key_length: S; T by default.

    Returns:
        Boolean [1, 1, T, S], True = may attend.
    """
    key_length = query_length if key_length is None else key_length
    return causal_rows(query_length, key_length)[None, None]


def padding_mask(ids, pad_id=0):
    """The mask of real tokens in padded ids.

    Args:
        ids: integer [B, S].
        pad_id: the id that fills short rows.

    Returns:
        Boolean [B, 1, 1, S], True = may attend. `MultiHeadAttention(padding_mask=)` takes the [B, S] form
        `padding_mask(ids)[:, 0, 0]`.
    """
    return tf.not_equal(ids, tf.cast(pad_id, tf.convert_to_tensor(ids).dtype))[:, None, None, :]


def causal_rows(query_length, key_length, query_positions=None):
    """Boolean [T, S] (or [B, T, S] with per-row `query_positions` [B, T]): key index <= query position."""
    keys = tf.range(key_length)
    if query_positions is None:
        query_positions = tf.range(query_length) + (key_length - query_length)
    return keys <= query_positions[..., None]


def as_boolean(mask, name="mask"):
    """Reads a user's mask: boolean as it is, floating in the documents' sense (nonzero = blocked).

    Values are known in eager code and of constants in a graph. Where only the running graph knows them, each number
    other than 0 blocks, 0.3 as well as 1: a graph cannot be trusted to refuse them.

    Raises:
        TypeError: for integers, whose sense cannot be told.
        ValueError: for floating numbers other than 0 and 1, where they are known (they look additive).
    """
    mask = tf.convert_to_tensor(mask)
    if mask.dtype == tf.bool:
        return mask
    if not mask.dtype.is_floating:
        raise TypeError(
            f"{name} must be boolean (True = may attend) or floating (1.0 = blocked). Got dtype {mask.dtype.name}, "
            f"whose sense cannot be told: write tf.cast({name}, tf.bool) if 1 means 'may attend', "
            f"tf.cast({name}, tf.float32) if 1 means 'blocked'."
        )
    known = tf.get_static_value(mask)
    if known is not None:
        others = np.setdiff1d(np.unique(np.asarray(known, np.float64)), (0.0, 1.0))
        if others.size:
            raise ValueError(
                f"A floating {name} holds 1.0 for blocked and 0.0 for open positions. Got the value {others[0]:g}: "
                "give additive numbers (such as -1e9 or position biases) as bias= instead."
            )
    warnings.warn(
        f"{name} is floating and is read in the documents' sense: nonzero = blocked. Give a boolean mask, "
        "True = may attend, to say what you mean.",
        MaskConventionWarning,
        stacklevel=4,
    )
    return tf.equal(mask, 0)


def split_bias(bias, dtype):
    """Parts an additive bias into finite numbers and what it blocks.

    Args:
        bias: floating, any shape; -inf = blocked.
        dtype: dtype of the scores that it will be added to (at least float32).

    Returns:
        `(finite, allowed)`: the bias with 0 in place of -inf, and boolean True where it was not -inf. Keeping -inf out
        of the sum keeps NaN out of the gradient.
    """
    bias = tf.convert_to_tensor(bias)
    if not bias.dtype.is_floating:
        raise TypeError(f"bias must be floating: it is added to the scores. Got dtype {bias.dtype.name}.")
    allowed = tf.not_equal(bias, tf.constant(-np.inf, bias.dtype))
    return tf.cast(tf.where(allowed, bias, tf.zeros_like(bias)), dtype), allowed


@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """Everything that limits who attends to whom, kept apart so that a mechanism can honour each part its own way.

    Attributes:
        padding: boolean [B, S], True = a real key; None = all are.
        query_padding: boolean [B, T], True = a real query; rows of others are zero. None = all are.
        free: boolean, rank 4, broadcastable to [B, H, T, S]; None = no limit.
        causal: whether key index <= query position is required.
        query_positions: int32 [B, T], index of each query on the key axis, for caches whose rows have their own
            lengths; None = bottom-right alignment (query t sits at key S - T + t).
    """

    padding: tf.Tensor | None = None
    query_padding: tf.Tensor | None = None
    free: tf.Tensor | None = None
    causal: bool = False
    query_positions: tf.Tensor | None = None

    def dense(self, query_length, key_length):
        """All parts as one boolean tensor broadcastable to [B, H, T, S], or None where nothing is limited."""
        parts = []
        if self.padding is not None:
            parts.append(self.padding[:, None, None, :])
        if self.query_padding is not None:
            parts.append(self.query_padding[:, None, :, None])
        if self.free is not None:
            parts.append(self.free)
        if self.causal:
            rows = causal_rows(query_length, key_length, self.query_positions)
            parts.append(rows[None, None] if self.query_positions is None else rows[:, None])
        return joined(*parts)

    def distance(self, query_length, key_length):
        """Key position minus query position, int32 [B or 1, 1, T, S], for biases that depend on it.

        In one pass these are places in the sequence as given, so that padding on either side moves nothing; with
        `query_positions`, those of a store that may have gaps, real keys are counted.
        """
        if self.query_positions is None:
            query = tf.range(query_length) + (key_length - query_length)
            return (tf.range(key_length) - query[:, None])[None, None]
        query, key = self.stored_positions()
        return (key[:, None, :] - query[:, :, None])[:, None]

    def stored_positions(self):
        """Positions of queries [B, T] and keys [B, S] of a store among the real keys of their row, int32."""
        key = tf.cumsum(tf.cast(self.padding, tf.int32), axis=1) - 1
        batch, length = checks.sizes(key)
        place = self.query_positions + length * tf.range(batch)[:, None]
        return tf.gather(tf.reshape(key, [-1]), place), key


def joined(*masks):
    """The conjunction of boolean masks, None where there is none."""
    result = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else tf.logical_and(result, mask)
    return result


def key_mask(mask, name, batch_axis_size, length):
    """A [B, S] key (or query) mask as boolean, its shape checked against what is static."""
    mask = as_boolean(mask, name)
    if mask.shape.rank != 2 or not mask.shape.is_compatible_with([_static(batch_axis_size), _static(length)]):
        raise ValueError(
            f"{name} must have shape (batch, length) = ({_show(batch_axis_size)}, {_show(length)}). "
            f"Got shape {tuple(mask.shape)}."
        )
    return mask


def marks(mask, name, batch, length):
    """A [B, T] selection of tokens, True = selected. Booleans only: a floating mask would mean the opposite."""
    mask = tf.convert_to_tensor(mask)
    if mask.dtype != tf.bool:
        raise TypeError(f"{name} must be boolean, True = selected. Got dtype {mask.dtype.name}.")
    return key_mask(mask, name, batch, length)


def free_mask(mask, batch, query_length, key_length, num_heads=None):
    """A layer's `mask` argument as boolean of rank 4, broadcastable to [B, H, T, S].

    Rank 4 broadcasts as it is; rank 3 is (B, T, S). Rank 2 is (T, S) and is refused where it could as well be a
    padding mask (B, S).
    """
    mask = as_boolean(mask)
    b, t = _static(batch), _static(query_length)
    rank = mask.shape.rank
    if rank == 4:
        expanded = mask
    elif rank == 3:
        expanded = mask[:, None]
    elif rank == 2:
        if t is None or b is None or t == b:
            raise ValueError(
                f"A mask of shape {tuple(mask.shape)} may mean (query, key) or (batch, key) here, where batch is "
                f"{_show(batch)} and the query length {_show(query_length)}: write mask[None] for (query, key), or "
                "padding_mask= for (batch, key)."
            )
        expanded = mask[None, None]
    else:
        raise ValueError(f"mask must have rank 2, 3 or 4. Got shape {tuple(mask.shape)}.")
    hint = "; a padding mask (batch, key) goes to padding_mask="
    check_broadcast("mask", expanded.shape, batch, num_heads, query_length, key_length, hint)
    return expanded


def check_broadcast(name, shape, batch, num_heads, query_length, key_length, hint=""):
    """Raises where a static shape of rank 4 does not broadcast to [B, H, T, S]; sizes of None are not known."""
    sizes = (batch, num_heads, query_length, key_length)
    for got, wanted in zip(shape, map(_static, sizes)):
        if got not in (None, 1) and wanted is not None and got != wanted:
            raise ValueError(
                f"{name} must broadcast to (batch, heads, query, key) = ({', '.join(map(_show, sizes))}). "
                f"Got shape {tuple(shape)}{hint}."
            )


def _static(size):
    return None if size is None or (tf.is_tensor(size) and not checks.is_concrete(size)) else int(size)


def _show(size):
    static = _static(size)
    return "unknown" if static is None else str(static)
