"""Translation with the model in training, for its validation scores."""

import tensorflow as tf

from keras_attention.generation.best_answer import best_answer
from keras_attention.generation.limits import answer_limits
from keras_attention.generation.source_ids import source_ids
from keras_attention.generation.translator import Translator
from keras_attention.text import PAD_ID


def greedy_translator(model, tokenizer):
    """A `Translator` that always uses the model's current weights; it answers as the finished run folder will.

    Args:
        model: with `max_length`, `init_state` and `step`, such as `keras_attention.models.Transformer`.
        tokenizer: with `encode` and `decode`.

    Returns:
        `Translator`: list of `str` in, list of `str` out.
    """
    return Translator(_ModelInTraining(model, tokenizer), batch_size=64)


class _ModelInTraining:
    """What `Translator` asks of a backend, with the greedy search only."""

    def __init__(self, model, tokenizer):
        self.model = model
        self.tokenizer = tokenizer

        # One graph for all batches, whatever their lengths; made at the first call.
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
        def answer(source):
            lengths = tf.reduce_sum(tf.cast(source != PAD_ID, tf.int32), axis=1)
            limits = answer_limits(lengths, model.max_length)
            return best_answer(model, model.init_state(source), limits=limits).tokens

        self._answer = answer

    def translate(self, texts, *, beams=None, length_penalty=None):
        source = source_ids(self.tokenizer, texts, self.model.max_length)
        return self.tokenizer.decode(self._answer(tf.constant(source)).numpy())
