"""The beam search of `beam.py` on NumPy arrays, for runtimes that are no part of a TensorFlow graph."""

import math

import numpy as np

from keras_attention.generation.arguments import LENGTH_PENALTY
from keras_attention.generation.result import GenerationResult


def array_beam_search(
    step,
    reorder,
    state,
    start_tokens,
    *,
    beams,
    end_id,
    pad_id,
    max_new_tokens,
    length_penalty=LENGTH_PENALTY,
    forbidden=(),
):
    """What `beam_search` computes, to the same rules and in float32; see there. With one beam, the greedy search.

    Args:
        step: function `(tokens int32 [B * beams], state) -> (logits [B * beams, V], state)`.
        reorder: function `(state, parents int32 [B * beams]) -> state`; called after a step that moved a hypothesis.
        state: whatever `step` takes, with B * beams rows: each row of the batch `beams` times.
        start_tokens: int32 `[B]`.
        beams, pad_id, length_penalty, forbidden: as in `beam_search`.
        end_id: the token that ends a hypothesis, or several of them, any of which does.
        max_new_tokens: int32 `[B]`, the most tokens of each row.

    Returns:
        `GenerationResult` of arrays: tokens `[B, K, N]`, lengths and scores `[B, K]`, best first, overflow `[B]`.
    """
    limits = np.maximum(np.asarray(max_new_tokens, np.int32), 0)[:, None]
    batch, width = len(limits), int(limits.max(initial=0))
    wanted = proposals_of(beams, np.size(end_id))
    first_rows = np.arange(batch, dtype=np.int32)[:, None] * beams
    is_first = np.arange(beams) == 0

    sums = np.where(is_first & (limits > 0), 0, -math.inf).astype(np.float32)
    tokens = np.full((batch, beams, width), pad_id, np.int32)
    ended = {
        "scores": np.where(is_first & (limits <= 0), 0, -math.inf).astype(np.float32),
        "lengths": np.zeros((batch, beams), np.int32),
        "tokens": tokens,
    }
    overflow = np.zeros(batch, np.int32)
    last = np.repeat(np.asarray(start_tokens, np.int32)[:, None], beams, axis=1)
    position = 0
    while (sums > -math.inf).any():
        logits, state = step(last.reshape(-1), state)
        best, log_probs, usable = _best_tokens(logits, wanted, list(forbidden))
        choices = best.shape[1]
        usable = usable.reshape(batch, beams)
        stuck = (sums > -math.inf) & ~usable
        overflow[stuck.any(axis=1)] = 1
        stuck_scores = np.where(stuck, sums / _penalty(position, length_penalty), -math.inf)

        totals = np.where(usable, sums, -math.inf)[:, :, None] + log_probs.reshape(batch, beams, choices)
        new_sums, proposal = _top(totals.reshape(batch, -1), min(wanted, beams * choices))
        new_tokens = np.take_along_axis(best.reshape(batch, -1), proposal, axis=1)
        parents = proposal // choices
        histories = np.take_along_axis(tokens, parents[:, :, None], axis=1)
        histories[:, :, position] = new_tokens

        complete = np.isin(new_tokens, end_id) | (position + 1 >= limits)
        new_scores = np.where(complete, new_sums / _penalty(position + 1, length_penalty), -math.inf)
        lengths = [ended["lengths"], np.full((batch, beams), position), np.full(parents.shape, position + 1)]
        ended = _kept(
            np.concatenate([ended["scores"], stuck_scores, new_scores], axis=1),
            np.concatenate(lengths, axis=1),
            np.concatenate([ended["tokens"], tokens, histories], axis=1),
            beams,
        )

        sums, kept = _top(np.where(complete, -math.inf, new_sums), beams)
        new_tokens, parents = (np.take_along_axis(x, kept, axis=1) for x in (new_tokens, parents))
        tokens = np.take_along_axis(histories, kept[:, :, None], axis=1)
        largest_penalty = np.maximum(_penalty(position + 1, length_penalty), _penalty(limits, length_penalty))
        reachable = sums[:, :1] / largest_penalty
        sums = np.where(reachable > ended["scores"][:, -1:], sums, -math.inf).astype(np.float32)
        last = np.where(sums > -math.inf, new_tokens, pad_id)
        parents = (first_rows + parents).reshape(-1)
        if (parents != np.arange(batch * beams)).any():
            state = reorder(state, parents)
        position += 1
    return GenerationResult(ended["tokens"], ended["lengths"], ended["scores"], overflow)


def proposals_of(beams, num_end_ids=1):
    """How many proposals of a row are looked at in a step: so many that `beams` run on whatever else ends.

    Each running hypothesis may end by each end token. The one proposal of a single beam, which may end, makes it the
    greedy search.
    """
    return (1 + num_end_ids) * beams if beams > 1 else 1


def _penalty(lengths, alpha):
    return np.power((np.float32(5) + np.asarray(lengths, np.float32)) / np.float32(6), np.float32(alpha))


def _best_tokens(logits, count, forbidden):
    """As `next_tokens.best_tokens`."""
    logits = np.array(logits, np.float32)
    logits[:, forbidden] = np.where(np.isnan(logits[:, forbidden]), math.nan, -math.inf)
    highest = np.where(np.isnan(logits), math.inf, logits).max(axis=1, keepdims=True)
    usable = np.isfinite(highest)
    logits = np.where(usable, logits, np.float32(0)) - np.where(usable, highest, 0).astype(np.float32)
    values, tokens = _top(logits, min(count, logits.shape[1]))
    log_probs = values - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return tokens, np.where(usable, log_probs, 0).astype(np.float32), usable[:, 0]


def _top(values, count):
    """The `count` largest of each row and where they are; equal ones in order, as TensorFlow's top_k gives them.

    One pass a place: beams are few, and a sort of the whole vocabulary costs more.
    """
    left = np.array(values, np.float32)
    rows = np.arange(len(left))
    free = np.ones(left.shape, bool)
    places = np.empty((len(left), count), np.int32)
    for place in range(count):
        chosen = left.argmax(axis=1)
        # Where only -inf is left, what was taken looks like what was not.
        chosen = np.where(left[rows, chosen] > -math.inf, chosen, free.argmax(axis=1))
        places[:, place] = chosen
        free[rows, chosen] = False
        left[rows, chosen] = -math.inf
    return np.take_along_axis(np.asarray(values, np.float32), places, axis=1), places


def _kept(scores, lengths, tokens, count):
    """As `beam._best_ended`."""
    scores, kept = _top(scores, count)
    return {
        "scores": scores,
        "lengths": np.take_along_axis(lengths, kept, axis=1).astype(np.int32),
        "tokens": np.take_along_axis(tokens, kept[:, :, None], axis=1),
    }
