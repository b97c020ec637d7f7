"""Checks of Keras weight files before they are read."""

import h5py


def check_blocks(path, model, *attributes):
    """Raises where a `.weights.h5` file holds another number of blocks than the model.

    Keras reads a deeper model's file into a shallower model without a word, dropping the rest.

    Args:
        path: the file.
        model: a model.
        *attributes: names of the model's lists of layers.

    Raises:
        ValueError: naming the list and both numbers.
    """
    with h5py.File(path, "r") as file:
        for name in attributes:
            held, wanted = len(file.get(name, ())), len(getattr(model, name))
            if held != wanted:
                raise ValueError(
                    f"{path} holds {name} of {held} layers, the model has {wanted}: make the model with the sizes that "
                    "the file was saved with, or pass skip_mismatch=True to load what fits."
                )
