"""Translation by the Keras model of a run folder."""

import tensorflow as tf

import keras_attention.models  # noqa: F401  registers the classes that a saved model names
from keras_attention.generation.best_answer import best_answer
from keras_attention.generation.folder_files import read_json_object, require_files, unreadable
from keras_attention.generation.limits import answer_limits
from keras_attention.generation.source_ids import source_ids
from keras_attention.text import PAD_ID, SentencePieceTokenizer


class RunBackend:
    """The model and the tokenizer of a folder that `keras-attention train translation` wrote.

    Args:
        folder: `pathlib.Path` with config.json, model.keras and tokenizer.model.

    Attributes:
        model: the `keras.Model`, with `init_state`, `step`, `reorder` and `max_length`.
        tokenizer: the `SentencePieceTokenizer`.

    Raises:
        UsageError: a file is missing or damaged.
    """

    files = ("config.json", "model.keras", "tokenizer.model")

    def __init__(self, folder):
        import keras

        require_files(folder, self.files, "a run folder", "let the training finish (--resume), or restore the file")
        read_json_object(folder / "config.json")
        self.tokenizer = SentencePieceTokenizer.load(folder / "tokenizer.model")
        try:
            self.model = keras.saving.load_model(folder / "model.keras", compile=False)
        except Exception as error:
            # Keras lets the errors of zip, HDF5 and JSON through, and its own: all mean the same here.
            raise unreadable(folder / "model.keras", error) from error
        self._functions = {}

    def translate(self, texts, *, beams=None, length_penalty=None):
        """The translations of one batch of texts, a list of `str`.

        Args:
            texts: list of `str`.
            beams: width of the search; 1, greedy, by default.
            length_penalty: of the beam search; 0.6 by default.
        """
        beams, length_penalty = beams or 1, 0.6 if length_penalty is None else length_penalty
        source = source_ids(self.tokenizer, texts, self.model.max_length)
        tokens = self._function(beams, length_penalty)(tf.constant(source))
        return self.tokenizer.decode(tokens.numpy())

    def _function(self, beams, length_penalty):
        """One graph for every batch; made once for each way to search."""
        key = (beams, length_penalty)
        if key not in self._functions:
            model = self.model

            @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
            def answer(source):
                lengths = tf.reduce_sum(tf.cast(source != PAD_ID, tf.int32), axis=1)
                limits = answer_limits(lengths, model.max_length)
                state = model.init_state(source)
                return best_answer(model, state, limits=limits, beams=beams, length_penalty=length_penalty).tokens

            self._functions[key] = answer
        return self._functions[key]
