"""Translation by the Keras model of a run folder."""

import keras_attention.models  # noqa: F401  registers the classes that a saved model names
from keras_attention.inference.folder_files import read_json_object, require_files, unreadable
from keras_attention.inference.model_backend import ModelBackend
from keras_attention.text import SentencePieceTokenizer


class RunBackend(ModelBackend):
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
        tokenizer = SentencePieceTokenizer.load(folder / "tokenizer.model")
        try:
            model = keras.saving.load_model(folder / "model.keras", compile=False)
        except Exception as error:
            # Keras lets the errors of zip, HDF5 and JSON through, and its own: all mean the same here.
            raise unreadable(folder / "model.keras", error) from error
        super().__init__(model, tokenizer)
