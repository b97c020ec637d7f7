"""Translation by an exported SavedModel."""

import json

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.inference.folder_files import require_files, unreadable


class SavedModelBackend:
    """A SavedModel whose `serving_default` takes strings and gives strings, as `export_saved_model` writes it.

    Args:
        folder: `pathlib.Path` of one version, with saved_model.pb, or of integer versions, of which the highest is
            taken, as servers do.

    Raises:
        UsageError: a file is missing or damaged, or the signature is another one.
    """

    files = ("saved_model.pb", "variables/variables.index")

    def __init__(self, folder):
        self._folder = folder = newest_version(folder) or folder
        require_files(folder, self.files, "a SavedModel")
        try:
            import tensorflow_text  # noqa: F401  registers the operations of the tokenizer
        except ImportError as error:
            raise UsageError(
                f"{folder} needs tensorflow-text, which cannot be imported ({error}): reinstall keras-attention."
            ) from None
        try:
            self._model = tf.saved_model.load(str(folder))
        except Exception as error:
            # Damage anywhere in the files surfaces as whatever read them: protobuf, the variables' reader, the graph.
            raise unreadable(folder, error) from error
        self._translate = self._model.signatures.get("serving_default")
        inputs = sorted(self._translate.structured_input_signature[1]) if self._translate else []
        if inputs != ["text"] or "text" not in self._translate.structured_outputs:
            raise UsageError(
                f"{folder} does not translate text: its signature serving_default takes "
                f"{', '.join(inputs) or 'nothing'}. Export the model with its tokenizer."
            )

    def translate(self, texts, *, beams=None, length_penalty=None):
        """The translations of one batch of texts, a list of `str`; the search is the one it was exported with."""
        for name, value in (("beams", beams), ("length_penalty", length_penalty)):
            if value is not None and value != self._exported(name):
                raise UsageError(
                    f"{self._folder} was exported with its own search, which {name}={value} cannot change: leave "
                    f"{name} out, or export the model again with {name}={value}."
                )
        answers = self._translate(text=tf.constant(texts, tf.string))["text"]
        return [answer.decode("utf-8", errors="replace") for answer in answers.numpy()]

    def _exported(self, option):
        """What the export says about itself, or None: a SavedModel of another tool says nothing."""
        try:
            described = json.loads((self._folder / "assets.extra" / "export.json").read_text(encoding="utf-8"))
            return described["options"][option]
        except (OSError, ValueError, KeyError, TypeError):
            return None


def newest_version(folder):
    """The sub-folder with the highest integer name, or None where none has one."""
    versions = [entry for entry in folder.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return max(versions, key=lambda entry: int(entry.name), default=None)
