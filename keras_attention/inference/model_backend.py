"""Translation by a Keras model and its tokenizer."""

from collections import OrderedDict

import tensorflow as tf

from keras_attention.generation.arguments import LENGTH_PENALTY, check_penalty
from keras_attention.generation.best_search import best_answer
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.generation.limits import answer_limits
from keras_attention.inference.source_ids import source_ids
from keras_attention.text.special_ids import PAD_ID

_KEPT_GRAPHS = 4  # widths of the search; each graph takes some 18 MB


class ModelBackend:
    """Searches with a model as its weights are at the time of a call, so also while it is trained.

    Args:
        model: with `max_length`, `init_state`, `step` and `reorder`, such as `keras_attention.models.Transformer`.
        tokenizer: with `encode` and `decode`, such as `keras_attention.text.SentencePieceTokenizer`.

    Attributes:
        model, tokenizer: as given.
        max_length: of the model.
    """

    def __init__(self, model, tokenizer):
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = model.max_length
        self._functions = OrderedDict()

    def translate(self, texts, *, beams=None, length_penalty=None):
        """The translations of one batch of texts, a list of `str`.

        Args:
            texts: list of `str`.
            beams: width of the search; 1, greedy, by default.
            length_penalty: of the beam search; 0.6 by default.
        """
        beams = beams or 1
        check_penalty(beams, length_penalty)
        penalty = tf.constant(LENGTH_PENALTY if length_penalty is None else length_penalty, tf.float32)
        source = source_ids(self.tokenizer, texts, self.max_length)
        tokens = self._function(beams)(tf.constant(source), penalty)
        return self.tokenizer.decode(tokens.numpy())

    def _function(self, beams):
        """One graph for every batch, whatever its lengths and its penalty; those of the last few widths are kept."""
        if beams not in self._functions:
            model = self.model
            specs = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.float32)]

            @tf.function(autograph=False, input_signature=specs)
            def answer(source, penalty):
                lengths = tf.reduce_sum(tf.cast(source != PAD_ID, tf.int32), axis=1)
                limits = answer_limits(lengths, model.max_length)
                state = decoding_state(model, source, model.max_length)
                return best_answer(model, state, limits=limits, beams=beams, length_penalty=penalty).tokens

            self._functions[beams] = answer
            if len(self._functions) > _KEPT_GRAPHS:
                self._functions.popitem(last=False)
        self._functions.move_to_end(beams)
        return self._functions[beams]
