"""The best answer of each row of an encoder-decoder, by either search."""

import tensorflow as tf

from keras_attention.generation.arguments import LENGTH_PENALTY
from keras_attention.generation.beam import beam_search
from keras_attention.generation.greedy_search import greedy
from keras_attention.generation.result import GenerationResult
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID


def best_answer(decoder, state, *, limits, beams=1, length_penalty=LENGTH_PENALTY):
    """Decode from the begin-of-sentence token and keep the best hypothesis of each row.

    Padding and begin of sentence are never generated: the decoder skips the one, and neither is part of a text.

    Args:
        decoder: has `step` and `reorder`, such as `keras_attention.models.Transformer`.
        state: its state after the source was read, with B rows.
        limits: int32 `[B]`, the most tokens of each answer, the end token included.
        beams: width of the search; 1 is the greedy search.
        length_penalty: of the beam search.

    Returns:
        `GenerationResult` with tokens `[B, N]`, lengths `[B]`, scores `[B]` (of a beam search: with the length
        penalty), overflow `[B]`.
    """
    start = tf.fill(tf.shape(limits), BOS_ID)
    ids = {"end_id": EOS_ID, "pad_id": PAD_ID, "forbidden": (PAD_ID, BOS_ID)}
    if beams == 1:
        return greedy(decoder.step, state, start, max_new_tokens=limits, **ids)
    result = beam_search(
        decoder.step,
        decoder.reorder,
        state,
        start,
        beams=beams,
        length_penalty=length_penalty,
        max_new_tokens=limits,
        **ids,
    )
    return GenerationResult(result.tokens[:, 0], result.lengths[:, 0], result.scores[:, 0], result.overflow)
