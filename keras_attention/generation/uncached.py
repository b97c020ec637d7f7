"""Greedy decoding without a cache: what a cached decode must equal, and what it is measured against."""

import tensorflow as tf

from keras_attention.generation.arguments import start_token_vector
from keras_attention.generation.greedy_search import greedy
from keras_attention.text.special_ids import PAD_ID


def greedy_uncached(
    logits_fn, start_tokens, *, end_id, pad_id=PAD_ID, max_new_tokens, forbidden=(), buffer_length=None
):
    """`greedy`, with a model that reads all tokens so far again for every new one.

    Token n costs a pass over n positions, so N tokens cost N (N + 1) / 2 positions instead of N. It is here as the
    plain statement of what the cached search computes, for tests and for the benchmark of the two.

    Args:
        logits_fn: function `tokens [B, T] int32 -> logits [B, T, V]`; the logits of the last position are used. Rows
            that have ended go on with `pad_id`, and are ignored.
        start_tokens, end_id, pad_id, max_new_tokens, forbidden, buffer_length: as in `greedy`.

    Returns:
        `GenerationResult`, as from `greedy`.
    """
    start_tokens = start_token_vector(start_tokens)

    def step(last, prefix):
        prefix = tf.concat([prefix, last[:, None]], axis=1)
        return logits_fn(prefix)[:, -1], prefix

    return greedy(
        step,
        tf.zeros_like(start_tokens)[:, None][:, :0],
        start_tokens,
        end_id=end_id,
        pad_id=pad_id,
        max_new_tokens=max_new_tokens,
        forbidden=forbidden,
        buffer_length=buffer_length,
    )
