"""Checks and defaults that the searches share."""

from keras_attention.errors import UsageError
from keras_attention.scalars import is_whole

# The exponent of a beam search's length penalty where none is given: a usual choice for translation.
LENGTH_PENALTY = 0.6


def start_token_vector(start_tokens):
    """`start_tokens` as int32 `[B]`; raises `ValueError` for another rank, `TypeError` for another kind of number."""
    import tensorflow as tf

    tokens = tf.convert_to_tensor(start_tokens)
    if not tokens.dtype.is_integer:
        raise TypeError(f"start_tokens must hold integer token ids. Got dtype {tokens.dtype.name}.")
    if tokens.shape.rank != 1:
        raise ValueError(
            f"start_tokens must have shape [B], one token for each row. Got shape {tokens.shape}; "
            "run a longer prompt through the model's prefill and start from its last token."
        )
    return tf.cast(tokens, tf.int32)


def check_penalty(beams, length_penalty):
    """Raises a `UsageError` for a length penalty of a greedy search, which compares no answers."""
    if beams == 1 and length_penalty is not None:
        raise UsageError("length_penalty would have no effect: the search is greedy without beams of at least 2.")


def whole_number(name, value, *, least):
    """`value` as a Python int that is at least `least`; the error names the argument."""
    if not is_whole(value, least):
        raise ValueError(f"{name} must be a whole number of at least {least}. Got {value!r}.")
    return int(value)


def row_limits(max_new_tokens, start_tokens, buffer_length):
    """The most tokens each row may generate, and the width of the buffer that holds them.

    Args:
        max_new_tokens: int, or an integer tensor of shape `[B]` or `[]`; a tensor's negative entries count as 0.
        start_tokens: int32 `[B]`, for the batch size.
        buffer_length: int or None; a bound for `max_new_tokens` that is known while a graph is traced.

    Returns:
        `(limits, width)`: int32 `[B]`, and an int, or an int32 scalar tensor where only the running graph knows it.
    """
    import tensorflow as tf

    if buffer_length is not None:
        buffer_length = whole_number("buffer_length", buffer_length, least=0)
    if tf.is_tensor(max_new_tokens) or hasattr(max_new_tokens, "__len__"):
        limits = tf.convert_to_tensor(max_new_tokens)
        if not limits.dtype.is_integer or limits.shape.rank not in (0, 1):
            raise ValueError(
                "max_new_tokens must be a whole number or integers of shape [B], one limit for each row. "
                f"Got shape {limits.shape} and dtype {limits.dtype.name}."
            )
        # Clipped before the cast, which would wrap an int64 "no limit" round to a negative number.
        highest = tf.int32.max if buffer_length is None else buffer_length
        limits = tf.cast(tf.clip_by_value(tf.cast(limits, tf.int64), 0, highest), tf.int32)
        if limits.shape.rank == 1 and not limits.shape.is_compatible_with(start_tokens.shape):
            raise ValueError(
                f"max_new_tokens must have one limit for each row. Got shape {limits.shape} for start_tokens of "
                f"shape {start_tokens.shape}."
            )
        known = tf.get_static_value(limits)
        if buffer_length is not None:
            width = buffer_length
        elif known is not None:
            width = int(known.max(initial=0))
        else:
            width = tf.reduce_max(tf.concat([[0], tf.reshape(limits, [-1])], 0))
        limits = limits + tf.zeros_like(start_tokens)
    else:
        width = whole_number("max_new_tokens", max_new_tokens, least=0)
        if buffer_length is not None:
            width = min(width, buffer_length)
        limits = tf.fill(tf.shape(start_tokens), width)
        limits.set_shape(start_tokens.shape)
    return limits, width


def token_ids(name, ids):
    """`ids` as a tuple of Python ints; the error names the argument."""
    return tuple(whole_number(f"every id in {name}", id, least=0) for id in ids)
