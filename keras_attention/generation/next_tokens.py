"""The best next tokens of each row, with their log-probabilities."""

import math

import tensorflow as tf


def best_tokens(logits, count, forbidden=()):
    """The `count` most probable tokens of each row.

    Tokens are ranked by their float32 logits, less the highest (which is exact for those near it), and not by their
    log-probabilities, in which two near logits may round to one value; equal ones are ranked by token id, the lowest
    first. Both searches choose through this function, which is what makes a beam search of width 1 the greedy search.

    Args:
        logits: `[R, V]`, any floating dtype; `-inf` forbids a token.
        count: how many tokens to return; at most V of them are returned.
        forbidden: ids that are never chosen and have no part in the probabilities.

    Returns:
        `(tokens, log_probs, usable)`: int32 and float32 `[R, C]` with `C = min(count, V)`, best first, and boolean
        `[R]`. A row is not usable when its logits hold NaN or `+inf`, or nothing but `-inf`; its log-probabilities
        are then 0 and mean nothing.
    """
    logits = tf.convert_to_tensor(logits)
    if logits.shape.rank is not None and logits.shape.rank != 2:
        raise ValueError(f"step must return logits of shape [B, V]. Got shape {logits.shape}.")
    logits = tf.cast(logits, tf.float32)
    if forbidden:
        ids = tf.range(tf.shape(logits)[-1])
        is_forbidden = tf.reduce_any(ids == tf.constant(forbidden)[:, None], axis=0)  # [V]
        # NaN stays: a row that holds it is not to be trusted in its other places.
        logits = tf.where(is_forbidden & ~tf.math.is_nan(logits), -math.inf, logits)
    # NaN is looked for here and not in the sum below: XLA's exp does not always pass it on.
    highest = tf.reduce_max(tf.where(tf.math.is_nan(logits), math.inf, logits), axis=-1, keepdims=True)
    usable = tf.math.is_finite(highest)
    # How NaN sorts differs between devices: it must not reach top_k.
    logits, highest = tf.where(usable, logits, 0.0), tf.where(usable, highest, 0.0)
    logits -= highest  # [R, V], the best is 0
    vocabulary = logits.shape[-1]
    # XLA needs a number here where there is one.
    count = min(count, vocabulary) if vocabulary is not None else tf.minimum(count, tf.shape(logits)[-1])
    values, tokens = tf.math.top_k(logits, k=count)
    log_probs = values - tf.math.log(tf.reduce_sum(tf.exp(logits), axis=-1, keepdims=True))
    return tokens, tf.where(usable, log_probs, 0.0), tf.squeeze(usable, -1)
