"""Beam search: several hypotheses for each row, side by side."""

import math

import tensorflow as tf

from keras_attention.generation.arguments import LENGTH_PENALTY, row_limits, start_token_vector, token_ids, whole_number
from keras_attention.generation.array_beam import proposals_of
from keras_attention.generation.loop import run_loop
from keras_attention.generation.next_tokens import best_tokens
from keras_attention.generation.result import GenerationResult
from keras_attention.text.special_ids import PAD_ID


def length_penalty_of(lengths, alpha):
    """`((5 + n) / 6) ** alpha` for `n` generated tokens, float32 (Wu et al., 2016, equation 14)."""
    return tf.pow((5.0 + tf.cast(lengths, tf.float32)) / 6.0, alpha)


@tf.autograph.experimental.do_not_convert
def beam_search(
    step,
    reorder,
    state,
    start_tokens,
    *,
    beams,
    end_id,
    pad_id=PAD_ID,
    max_new_tokens,
    length_penalty=LENGTH_PENALTY,
    forbidden=(),
    buffer_length=None,
):
    """Keep the `beams` best hypotheses of every row until no running one can still be among them.

    In each step the running hypotheses of a row propose their next tokens. Of the 2K proposals with the highest sum of
    log-probabilities, those that got the end token become answers, and the K best of the others run on: at most K
    proposals end in one step, so that an ended hypothesis takes no place from those that run. It is frozen (its tokens
    and its score never change again) and stays among the answers for as long as it is one of the K best that ended. A
    row is done when nothing runs any more; when it has K answers and no running hypothesis can reach the score of the
    worst of them, whatever follows (log-probabilities are at most 0 and the largest penalty ahead is known, so this
    loses nothing); or at its limit, where running hypotheses become answers as they are.

    A search with one beam proposes one token and is the greedy search, exactly: it is over when its hypothesis ends.
    The score of a hypothesis is the sum of its log-probabilities divided by `((5 + n) / 6) ** length_penalty`, with n
    the number of *generated* tokens, the end token included and any prompt left out.

    Runs eagerly, inside `tf.function` (so in a SavedModel), and under `jit_compile=True` when the state keeps its
    shape and the width of the result is known while tracing; AutoGraph does not reach into `step`. What a row gets
    does not depend on the other rows. Equal logits of one hypothesis are taken lowest token id first, equal sums
    better-ranked parent first, and of equal scores the one that ended first is the better. Costs `beams` rows of
    `step` for each row of the batch.

    Args:
        step: function `(tokens [B * beams] int32, state) -> (logits [B * beams, V], state)`. Rows of hypotheses that
            ended are still passed, with `pad_id`, until the whole batch has; what comes back for them is ignored.
        reorder: function `(state, parents [R] int32) -> state` that takes row `parents[i]` of **every** tensor of the
            state, lengths, masks and recurrent sums included, as row i. It is called once to repeat each row `beams`
            times and once after every step.
        state: nested structure of batch-first tensors with B rows. They may grow from step to step, except under XLA.
        start_tokens: `[B]` integers, the token each row starts from (not part of the result).
        beams: number of hypotheses K, at least 1.
        end_id: the token that ends a hypothesis; a number that the model never gives, such as -1, to run to the limit.
        pad_id: what fills the result after a hypothesis' end.
        max_new_tokens: the most tokens to generate, the end token included: an int, or integers `[B]`, one limit a row.
        length_penalty: the exponent, a number or a float32 scalar tensor. 0 compares plain sums and so favours short
            answers, 0.6 is a usual choice for translation, a larger one favours longer answers.
        forbidden: ids that are never generated, such as those of padding and of the begin of a sentence; they have
            no part in the probabilities.
        buffer_length: a bound for `max_new_tokens`, for a graph that takes them as a tensor and needs a static width.

    Returns:
        `GenerationResult` with tokens `[B, K, N]`, lengths `[B, K]`, scores `[B, K]`, best first, and overflow `[B]`,
        which is 1 where the logits of a running hypothesis were unusable (that hypothesis ends as it is).

    Raises:
        TypeError, ValueError: start tokens that are not `[B]` integers, bad limits, beams or penalty, logits that are
            not of shape `[B * beams, V]`.

    Reference:
        Wu et al., "Google's Neural Machine Translation System", 2016, https://arxiv.org/abs/1609.08144 (the length
        penalty; their coverage penalty and pruning are left out). Twice as many proposals as beams: Vaswani et al.,
        "Tensor2Tensor for Neural Machine Translation", 2018, https://arxiv.org/abs/1803.07416.
    """
    start_tokens = start_token_vector(start_tokens)
    limits, width = row_limits(max_new_tokens, start_tokens, buffer_length)
    beams = whole_number("beams", beams, least=1)
    pad_id = whole_number("pad_id", pad_id, least=0)
    forbidden = token_ids("forbidden", forbidden)
    alpha = length_penalty
    # One graph can serve all penalties: there it is a tensor.
    if not tf.is_tensor(alpha) and not math.isfinite(alpha := float(alpha)):
        raise ValueError(f"length_penalty must be a finite number. Got {length_penalty!r}.")

    batch = start_tokens.shape[0] if start_tokens.shape[0] is not None else tf.shape(start_tokens)[0]
    columns = tf.range(width)
    first_rows = tf.range(batch)[:, None] * beams  # [B, 1], where a row's hypotheses begin in the state
    limits = limits[:, None]
    penalty_at_limit = length_penalty_of(limits, alpha)
    wanted = proposals_of(beams)
    impossible = tf.fill([batch, beams], -math.inf)
    no_tokens = tf.fill([batch, beams, width], pad_id)

    def some_hypothesis_runs(position, last, state, sums, tokens, ended, overflow):
        return tf.reduce_any(sums > -math.inf)

    def next_tokens(position, last, state, sums, tokens, ended, overflow):
        # sums [B, K]: log-probability of each running hypothesis, -inf where a place holds none.
        logits, state = step(tf.reshape(last, [-1]), state)
        best, log_probs, usable = best_tokens(logits, wanted, forbidden)  # [B * K, C], [B * K, C], [B * K]
        choices = best.shape[-1] if best.shape[-1] is not None else tf.shape(best)[-1]
        usable = tf.reshape(usable, [batch, beams])

        # A hypothesis without usable logits ends as it is.
        stuck = (sums > -math.inf) & ~usable
        overflow = tf.where(tf.reduce_any(stuck, axis=1), 1, overflow)
        stuck_scores = tf.where(stuck, sums / length_penalty_of(position, alpha), impossible)

        totals = tf.where(usable, sums, impossible)[:, :, None] + tf.reshape(log_probs, [batch, beams, choices])
        # P = 2K, or as many as there are, of a vocabulary of one token.
        proposals = tf.minimum(wanted, beams * choices) if tf.is_tensor(choices) else min(wanted, beams * choices)
        new_sums, proposal = tf.math.top_k(tf.reshape(totals, [batch, beams * choices]), k=proposals)  # [B, P]
        new_tokens = tf.gather(tf.reshape(best, [batch, beams * choices]), proposal, batch_dims=1)
        parents = proposal // choices
        histories = tf.gather(tokens, parents, batch_dims=1)  # [B, P, N]
        histories = tf.where(columns == position, new_tokens[:, :, None], histories)

        complete = (new_tokens == end_id) | (position + 1 >= limits)
        new_scores = tf.where(complete, new_sums / length_penalty_of(position + 1, alpha), -math.inf)
        lengths = [ended["lengths"], tf.fill([batch, beams], position), tf.fill(tf.shape(parents), position + 1)]
        ended = _best_ended(
            scores=tf.concat([ended["scores"], stuck_scores, new_scores], axis=1),
            lengths=tf.concat(lengths, axis=1),
            tokens=tf.concat([ended["tokens"], tokens, histories], axis=1),
            count=beams,
        )

        sums, kept = tf.math.top_k(tf.where(complete, -math.inf, new_sums), k=beams)
        new_tokens, parents, tokens = (tf.gather(x, kept, batch_dims=1) for x in (new_tokens, parents, histories))
        # Sums only fall, so the best a running hypothesis can reach is its sum over the largest penalty ahead: the
        # one at the limit, or with a negative exponent the next one.
        largest_penalty = tf.maximum(length_penalty_of(position + 1, alpha), penalty_at_limit)
        reachable = sums[:, :1] / largest_penalty
        sums = tf.where(reachable > ended["scores"][:, -1:], sums, impossible)

        running = sums > -math.inf
        state = reorder(state, tf.reshape(first_rows + parents, [-1]))
        return position + 1, tf.where(running, new_tokens, pad_id), state, sums, tokens, ended, overflow

    # All hypotheses of a row are the same at first: one of them runs. A row with a limit of 0 has ended, empty.
    is_first = tf.range(beams) == 0
    initial = (
        tf.constant(0),
        tf.repeat(start_tokens[:, None], beams, axis=1),
        reorder(state, tf.reshape(tf.repeat(tf.range(batch)[:, None], beams, axis=1), [-1])),
        tf.where(is_first & (limits > 0), 0.0, impossible),
        no_tokens,
        {
            "scores": tf.where(is_first & (limits <= 0), 0.0, impossible),
            "lengths": tf.zeros([batch, beams], tf.int32),
            "tokens": no_tokens,
        },
        tf.zeros_like(start_tokens),
    )
    _, _, _, _, _, ended, overflow = run_loop(some_hypothesis_runs, next_tokens, initial)
    return GenerationResult(ended["tokens"], ended["lengths"], ended["scores"], overflow)


def _best_ended(scores, lengths, tokens, count):
    """The `count` best of `[B, R]` hypotheses, best first, of equal ones the first.

    The first `count` are the answers so far. Where they hold empty places (`-inf`), those are what is left over: what
    stands behind them with `-inf` never gets in.
    """
    scores, kept = tf.math.top_k(scores, k=count)
    return {
        "scores": scores,
        "lengths": tf.gather(lengths, kept, batch_dims=1),
        "tokens": tf.gather(tokens, kept, batch_dims=1),
    }
