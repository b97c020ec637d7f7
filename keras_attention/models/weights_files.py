"""Checks of Keras weight files before they are read."""

import contextlib
import zipfile

import h5py


def check_blocks(path, model, *attributes, nested=None):
    """Raises where a file of weights holds another number of blocks than the model.

    Keras reads a deeper model's file into a shallower model without a word, dropping the rest.

    Args:
        path: a `.weights.h5` or `.keras` file.
        model: a model.
        *attributes: names of the model's lists of layers.
        nested: dict of place in the file -> list of layers, for lists of a part of the model.

    Raises:
        ValueError: naming the list and both numbers, or for another kind of file.
    """
    check_ending(path)
    with contextlib.ExitStack() as stack:
        file = path
        if str(path).endswith(".keras"):
            archive = stack.enter_context(zipfile.ZipFile(path))
            file = stack.enter_context(archive.open("model.weights.h5"))
        weights = stack.enter_context(h5py.File(file, "r"))
        lists = {name: getattr(model, name) for name in attributes} | (nested or {})
        for name, blocks in lists.items():
            held, wanted = len(weights.get(name, ())), len(blocks)
            if held != wanted:
                raise ValueError(
                    f"{path} holds {name} of {held} layers, the model has {wanted}: make the model with the sizes that "
                    "the file was saved with, or pass skip_mismatch=True to load what fits."
                )


def check_ending(path):
    """Raises ValueError for files in which the number of blocks cannot be read: all but `.weights.h5` and `.keras`."""
    if not str(path).endswith((".weights.h5", ".keras")):
        raise ValueError(
            f"Weights are read from .weights.h5 and .keras files. Got {path}: save them by "
            "model.save_weights('NAME.weights.h5') or model.save('NAME.keras')."
        )
