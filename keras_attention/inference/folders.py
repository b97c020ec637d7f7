"""What a path on disk holds: a run folder, a SavedModel, an ONNX folder or a Keras file, and which kind of model."""

import json
import zipfile
from pathlib import Path
from typing import NamedTuple

from keras_attention.errors import UsageError
from keras_attention.files import newest_version, read_json

# What a model does, by the name that config.json has for it -> (in words, the command for it).
KINDS = {
    "translation": ("a translation model", "translate"),
    "image-classifier": ("an image classifier", "classify"),
    "language": ("a language model", "generate"),
    "clip": ("a CLIP model", None),
}
ENCODER_DECODER = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
DECODER = ("prefill.onnx", "decode_step.onnx")
_RUN_FILES = ("config.json", "model.keras", "tokenizer.model")
# Of a .keras file, by the names that the package's classes are registered under.
_CLASSES = {"Transformer": "translation", "DecoderLM": "language", "RetNet": "language", "CLIP": "clip"}


class Found(NamedTuple):
    """What is in a place.

    Attributes:
        path: as given; of a SavedModel the folder of the version.
        layout: "run", "saved_model", "onnx" or "keras".
        kind: a key of `KINDS`, or None where the files do not say it.
        config: of a run folder its config.json, otherwise {}.
    """

    path: Path
    layout: str
    kind: str | None
    config: dict

    def require(self, kind):
        """Raises a `UsageError` that names both kinds, where the model is known to be of another one."""
        if self.kind not in (None, kind):
            raise UsageError(f"{self.path} holds {described(self.kind)}, not {described(kind)}. {_advice(self.kind)}")

    def require_files(self, *names):
        """Raises a `UsageError` that names the first of the files that is missing."""
        for name in names:
            if not (self.path / name).is_file():
                finish = self.layout == "run" and (self.path / "config.json").is_file()
                cure = "let the training finish (--resume), or restore the file" if finish else "restore the file"
                raise UsageError(f"{self.path} has no {name}. Expected {_LAYOUTS[self.layout]}: {cure}.")


_LAYOUTS = {
    "run": "a run folder, as keras-attention train writes it",
    "saved_model": "a SavedModel",
    "onnx": "an ONNX folder",
}


def described(kind):
    """A kind of model in words."""
    return KINDS[kind][0] if kind in KINDS else f"a model of the kind {kind!r}"


def _advice(kind):
    command = KINDS.get(kind, (None, None))[1]
    return f"Use keras-attention {command}." if command else "It has no command of its own: export it, or use Python."


def find_model(path, kind):
    """What `path` holds, for those who want a model of a kind.

    Args:
        path: a run folder; a SavedModel, or the folder of its integer versions, of which the highest is taken, as
            servers do; an ONNX folder; or a .keras file.
        kind: a key of `KINDS`, for the message, or None.

    Raises:
        UsageError: nothing there, or none of these.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist. Give a run folder, a SavedModel or an ONNX folder.")
    if not path.is_dir():
        if path.suffix == ".keras":
            return Found(path, "keras", kind_of_keras_file(path), {})
        raise UsageError(f"{path} is a file. Give the folder: a run folder, a SavedModel or an ONNX folder.")
    names = {entry.name for entry in path.iterdir()}
    version = newest_version(path)
    # The run's files come last: an ONNX folder has some of them too, and half a run folder is still recognised.
    if version or names & {"saved_model.pb", "variables"}:
        return Found(version or path, "saved_model", None, {})
    if any(name.endswith(".onnx") for name in names):
        return Found(path, "onnx", _onnx_kind(names), {})
    if names & {*_RUN_FILES, "checkpoints"}:
        if "config.json" not in names:
            return Found(path, "run", None, {})
        config = read_json(path / "config.json")
        return Found(path, "run", run_kind(config), config)
    raise UsageError(
        f"{path} holds no model. Expected {described(kind) if kind else 'a model'}: a run folder (config.json, "
        "model.keras), a SavedModel (saved_model.pb, or integer versions of it) or an ONNX folder."
    )


def run_kind(config):
    """The kind of a run by its config.json: what it says, or in folders of earlier versions what else it holds."""
    if isinstance(config.get("kind"), str):
        return config["kind"]
    keys = {"image_input": "clip", "images": "image-classifier", "tokenizer": "language"}
    return next((kind for key, kind in keys.items() if key in config), "translation")


def _onnx_kind(names):
    if names & set(ENCODER_DECODER):
        return "translation"
    if names & {"text_model.onnx", "vision_model.onnx"}:
        return "clip"
    if names & set(DECODER):
        return "language"
    return "image-classifier" if "preprocessor_config.json" in names else None


def kind_of_signatures(names):
    """The kind of a SavedModel by the names of its signatures, or None."""
    for name, kind in (("classify", "image-classifier"), ("encode_image", "clip"), ("encode", "translation")):
        if name in names:
            return kind
    return "language" if {"prefill", "decode_step"} <= set(names) else None


def kind_of_keras_file(path):
    """The kind of the model in a .keras file by the name of its class, or None; nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        return _CLASSES.get(config["registered_name"].removeprefix("keras_attention>"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile):
        return None  # whoever loads it says what is wrong with it
