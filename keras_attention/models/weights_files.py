"""Checks of Keras weight files before they are read."""

import contextlib
import re
import zipfile
from collections import Counter

import h5py

# Keras has no public name for the rule by which it names layers in its files.
from keras.src.utils.naming import to_snake_case

# Keras saves a model's attributes in the order of their names. What comes after this one, the list of all layers, is in
# the file as a part of it.
_LAYERS = "layers"


def check_blocks(path, model):
    """Raises where a file of weights holds another number of blocks than the model, or than a model in it.

    Keras reads a deeper model's file into a shallower model without a word, dropping the rest.

    Args:
        path: a `.weights.h5` or `.keras` file.
        model: a model whose `block_lists` names its lists of layers.

    Raises:
        ValueError: naming the list and both numbers, or for another kind of file.
    """
    check_ending(path)
    with contextlib.ExitStack() as stack:
        file = path
        if str(path).endswith(".keras"):
            archive = stack.enter_context(zipfile.ZipFile(path))
            file = stack.enter_context(archive.open("model.weights.h5"))
        _check(path, stack.enter_context(h5py.File(file, "r")), model, "")


def _check(path, weights, model, prefix):
    for name in getattr(model, "block_lists", ()):
        held, wanted = _held(weights, model, name), len(getattr(model, name))
        if held != wanted:
            raise ValueError(
                f"{path} holds {prefix}{name} of {held} layers, the model has {wanted}: make the model with the sizes "
                "that the file was saved with, or pass skip_mismatch=True to load what fits."
            )
    for name, part in vars(model).items():
        if hasattr(part, "block_lists"):
            place = name if name < _LAYERS else f"{_LAYERS}/{_names(model.layers)[id(part)]}"
            _check(path, weights.get(place, {}), part, f"{prefix}{name}/")


def _held(weights, model, name):
    """How many layers of the model's list `name` a file holds."""
    if name < _LAYERS:
        return len(weights.get(name, ()))
    # Under `layers` they stand by class, beside others.
    classes = {to_snake_case(type(layer).__name__) for layer in getattr(model, name)}
    return sum(re.sub(r"_\d+$", "", held) in classes for held in weights.get(_LAYERS, ()))


def _names(layers):
    """The name in the file of each layer of a list, by the layer's id: its class's, numbered from the second on."""
    names, seen = {}, Counter()
    for layer in layers:
        kind = to_snake_case(type(layer).__name__)
        names[id(layer)] = f"{kind}_{seen[kind]}" if seen[kind] else kind
        seen[kind] += 1
    return names


def check_ending(path):
    """Raises ValueError for files in which the number of blocks cannot be read: all but `.weights.h5` and `.keras`."""
    if not str(path).endswith((".weights.h5", ".keras")):
        raise ValueError(
            f"Weights are read from .weights.h5 and .keras files. Got {path}: save them by "
            "model.save_weights('NAME.weights.h5') or model.save('NAME.keras')."
        )
