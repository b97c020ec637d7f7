"""Whole answers: from source ids to generated ids, and from text to text, in one graph."""

import math

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import Endpoint, real_ids
from keras_attention.export.signatures import ids_and_lengths
from keras_attention.generation.arguments import LENGTH_PENALTY
from keras_attention.generation.best_search import best_answer
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.generation.limits import answer_limits
from keras_attention.scalars import is_whole
from keras_attention.text.special_ids import PAD_ID

BEAMS = 1
_BLANK = r"[\s\pZ]*"  # what str.strip takes away, spaces of all scripts


class Answers:
    """`generate` and `translate` of one model, which share the traced search.

    Args:
        model: with `encode`, `init_state`, `step` and `reorder`.
        capacity: the most tokens of an answer, and of a text's source.
        beams, length_penalty: of the search.
    """

    def __init__(self, model, capacity, beams, length_penalty):
        self.capacity = capacity

        @tf.function(
            autograph=False,
            input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)],
        )
        def answer(source, limits):
            state = decoding_state(model, source, capacity)
            return best_answer(model, state, limits=limits, beams=beams, length_penalty=length_penalty)

        self.answer = answer

    def generate(self):
        """The endpoint from source ids to generated ids; `max_new_tokens` below 1 asks for a row's usual limit."""

        def generate(input_ids, input_lengths, max_new_tokens):
            source = real_ids(input_ids, input_lengths)
            asked = tf.minimum(max_new_tokens, self.capacity)
            answer = self.answer(source, tf.where(asked > 0, asked, usual_limits(source, self.capacity)))
            return {
                "output_ids": answer.tokens,
                "output_lengths": answer.lengths,
                "scores": answer.scores,
                "overflow": answer.overflow,
            }

        wanted = tf.TensorSpec([None], tf.int32, "max_new_tokens")
        return Endpoint("generate", generate, [*ids_and_lengths("input"), wanted])

    def translate(self, tokenizer):
        """The endpoint from texts to texts. A text of nothing but spaces has an empty translation."""

        def translate(text):
            # Longer sources lose their end, as they do in training.
            source = tokenizer.tokenize(text, add_bos=True, add_eos=True, truncate=self.capacity)
            answer = self.answer(source, usual_limits(source, self.capacity))
            blank = tf.strings.regex_full_match(text, _BLANK)
            return {"text": tf.where(blank, "", tokenizer.detokenize(answer.tokens))}

        return Endpoint("translate", translate, [tf.TensorSpec([None], tf.string, "text")], imports=["tensorflow_text"])


def usual_limits(source, capacity):
    """The limits int32 [B] that all ways to answer share, of source ids [B, S]."""
    return answer_limits(tf.reduce_sum(tf.cast(source != PAD_ID, tf.int32), axis=1), capacity)


def search_options(beams, length_penalty):
    """dict of "beams" and "length_penalty", with their defaults for None; raises `UsageError` for impossible values."""
    beams = BEAMS if beams is None else beams
    length_penalty = LENGTH_PENALTY if length_penalty is None else length_penalty
    if not is_whole(beams, 1):
        raise UsageError(f"beams must be a whole number of at least 1. Got {beams!r}.")
    if not math.isfinite(length_penalty):
        raise UsageError(f"length_penalty must be a finite number. Got {length_penalty}.")
    return {"beams": int(beams), "length_penalty": float(length_penalty)}
