"""Keras models from disk: a .keras file, or a run folder with what belongs to its model."""

import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_attention.errors import UsageError, reason_of
from keras_attention.inference.folders import described, find_model

_CURE = "Restore it, or make the folder again."


def load_keras_model(path):
    """The model in a .keras file, not compiled. Nothing in the file is run.

    Raises:
        UsageError: there is no such file, it cannot be read, it is damaged, or its weights are not numbers.
    """
    import keras

    import keras_attention.models  # noqa: F401  registers the classes that the file names

    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist. Give a run folder, or the file of a Keras model.")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read (Permission denied). Give yourself the right to read it.")
    # Keras says of a file that is no archive that it is not there.
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is damaged: it is empty, cut short, or no Keras model. {_CURE}")
    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:
        # Keras lets zip, HDF5, JSON and its own errors through, all of which mean this to the user.
        raise UsageError(f"{path} cannot be read as a Keras model ({reason_of(error)}). {_CURE}") from error
    check_weights({v.path: v for v in model.variables}, path)
    return model


def check_weights(weights, path):
    """Raises a `UsageError` where weights, a dict of name -> variable, are NaN: every answer would be, too."""
    for name, weight in weights.items():
        numbers = np.asarray(weight)
        if numbers.dtype.kind not in "OSUb" and np.isnan(numbers).any():
            raise UsageError(
                f"{path} has weights that are NaN ({name}), and so would be its answers: the training diverged. Train "
                "again with a lower learning rate."
            )


class Run(NamedTuple):
    """The model of a run folder and what belongs to it.

    Attributes:
        path: the folder.
        kind: a key of `keras_attention.inference.folders.KINDS`.
        model: the `keras.Model`, not compiled.
        tokenizer: of a translator and of CLIP a `SentencePieceTokenizer`, of a language model a `ByteTokenizer`.
        images: of an image classifier its `ImageTask`, of CLIP its `ImageInput`.
    """

    path: Path
    kind: str
    model: Any
    tokenizer: Any = None
    images: Any = None


def load_run(found):
    """The `Run` in a folder in which `find_model` found one.

    Raises:
        UsageError: a file is missing or damaged, or the model and what belongs to it do not fit together.
    """
    path, kind, config = found.path, found.kind, found.config
    subwords = ("tokenizer.model",) if kind in ("translation", "clip") else ()
    found.require_files("config.json", "model.keras", *subwords)
    tokenizer, images = None, None
    if subwords:
        from keras_attention.text import SentencePieceTokenizer

        tokenizer = SentencePieceTokenizer.load(path / "tokenizer.model")
    elif kind == "language":
        tokenizer = byte_tokenizer(config.get("tokenizer"), path / "config.json")
    if kind in ("image-classifier", "clip"):
        from keras_attention.images import ImageInput, ImageTask

        key, task = ("images", ImageTask) if kind == "image-classifier" else ("image_input", ImageInput)
        images = task.from_dict(config.get(key), path / "config.json")
    model = load_keras_model(path / "model.keras")
    if tokenizer is not None:
        for size in _vocabularies(model, kind, path):
            check_vocabulary(tokenizer, size, path)
    return Run(path, kind, model, tokenizer, images)


def find_run(path, kind):
    """The run folder in `path`; exports and .keras files are refused."""
    found = find_model(path, kind)
    if found.layout != "run":
        raise UsageError(f"{path} is no run folder. Give the folder that keras-attention train wrote.")
    return found


def _vocabularies(model, kind, path):
    """The numbers of ids of a model's embeddings, which its tokenizer must have."""
    try:
        if kind == "translation":
            config = model.get_config()
            return config["source_vocab_size"], config["target_vocab_size"]
        return ((model.text_tower if kind == "clip" else model).vocab_size,)
    except (AttributeError, KeyError):
        raise UsageError(f"{path} says that it holds {described(kind)}, but model.keras holds another model.") from None


def check_vocabulary(tokenizer, size, path):
    """Raises a `UsageError` where a tokenizer is not the one that a model of `size` ids was trained with."""
    if tokenizer.vocab_size != size:
        raise UsageError(
            f"{path} has a tokenizer of {tokenizer.vocab_size} ids for a model of {size}: they were not trained "
            "together. Restore the tokenizer of this model."
        )


def byte_tokenizer(stored, path):
    """The `ByteTokenizer` that the JSON file `path` asks for by {"kind": "bytes", "offset": 4}."""
    from keras_attention.text import ByteTokenizer

    if not isinstance(stored, dict) or stored.get("kind") != "bytes" or stored.get("offset", 4) != ByteTokenizer.offset:
        raise UsageError(f"{path} must describe a language model on bytes. Got tokenizer {stored!r}.")
    return ByteTokenizer()
