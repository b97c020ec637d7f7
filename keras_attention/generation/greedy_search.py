"""Greedy decoding: the most probable token, step after step."""

import tensorflow as tf

from keras_attention.generation.arguments import row_limits, start_token_vector, token_ids, whole_number
from keras_attention.generation.loop import run_loop
from keras_attention.generation.next_tokens import best_tokens
from keras_attention.generation.result import GenerationResult
from keras_attention.text.special_ids import PAD_ID


@tf.autograph.experimental.do_not_convert
def greedy(step, state, start_tokens, *, end_id, pad_id=PAD_ID, max_new_tokens, forbidden=(), buffer_length=None):
    """Extend every row by its most probable next token until it ends.

    One call of `step` a token for the whole batch; the loop stops when the last row has ended. Runs eagerly, inside
    `tf.function` (so in a SavedModel), and under `jit_compile=True` when the state keeps its shape and the width of
    the result is known while tracing; AutoGraph does not reach into `step`. What a row gets does not depend on the
    other rows, and equal logits give the lowest token id.

    Args:
        step: function `(tokens [B] int32, state) -> (logits [B, V], state)`. Rows that have ended are still passed,
            with `pad_id` as their token, until all have; what comes back for them is ignored.
        state: nested structure of batch-first tensors, as `step` takes it. Its tensors may grow from step to step,
            except under XLA.
        start_tokens: `[B]` integers, the token each row starts from (not part of the result).
        end_id: the token that ends a row; a number that the model never gives, such as -1, to run to the limit.
        pad_id: what fills the result after a row's end.
        max_new_tokens: the most tokens to generate, the end token included: an int, or integers `[B]` with one limit
            for each row, so that one call (or one served signature) holds sentences of different lengths.
        forbidden: ids that are never generated, such as those of padding and of the begin of a sentence; they have
            no part in the probabilities.
        buffer_length: a bound for `max_new_tokens`, for a graph that takes them as a tensor and needs a static width
            (XLA); no row generates more. Without it the width is the largest of the limits.

    Returns:
        `GenerationResult` with tokens `[B, N]`, lengths `[B]`, scores `[B]`, overflow `[B]`; N is `max_new_tokens`,
        the largest of its rows, or `buffer_length`.

    Raises:
        TypeError, ValueError: start tokens that are not `[B]` integers, bad limits, logits that are not `[B, V]`.

    Example:
        >>> table = tf.constant([[0., 1., 2.], [3., 0., 1.], [0., 1., 0.]])
        >>> step = lambda tokens, state: (tf.gather(table, tokens), state)
        >>> result = greedy(step, {}, [0], end_id=1, max_new_tokens=5)
        >>> result.tokens.numpy().tolist(), result.lengths.numpy().tolist()
        ([[2, 1, 0, 0, 0]], [2])
    """
    start_tokens = start_token_vector(start_tokens)
    limits, width = row_limits(max_new_tokens, start_tokens, buffer_length)
    pad_id = whole_number("pad_id", pad_id, least=0)
    forbidden = token_ids("forbidden", forbidden)
    batch = tf.shape(start_tokens)[0]
    columns = tf.range(width)

    def some_row_runs(position, last, state, running, tokens, lengths, scores, overflow):
        return tf.reduce_any(running)

    def next_token(position, last, state, running, tokens, lengths, scores, overflow):
        logits, state = step(last, state)
        best, log_probs, usable = best_tokens(logits, 1, forbidden)
        best, log_probs = best[:, 0], log_probs[:, 0]  # [B]
        extended = running & usable
        overflow = tf.where(running & ~usable, 1, overflow)
        tokens = tf.where(extended[:, None] & (columns == position), best[:, None], tokens)
        lengths = lengths + tf.cast(extended, tf.int32)
        scores = scores + tf.where(extended, log_probs, 0.0)
        running = extended & (best != end_id) & (lengths < limits)
        return position + 1, tf.where(running, best, pad_id), state, running, tokens, lengths, scores, overflow

    nothing = tf.zeros_like(start_tokens)
    initial = (
        tf.constant(0),
        start_tokens,
        state,
        limits > 0,
        tf.fill([batch, width], pad_id),
        nothing,
        tf.zeros_like(start_tokens, tf.float32),
        nothing,
    )
    _, _, _, _, tokens, lengths, scores, overflow = run_loop(some_row_runs, next_token, initial)
    return GenerationResult(tokens, lengths, scores, overflow)
