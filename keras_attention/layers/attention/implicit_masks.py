"""Keras' implicit masks: the boolean (batch, length) tensor that rides on an embedding's output."""


def get(tensor):
    """The implicit mask of a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def put(tensor, mask):
    """Hangs a mask on a tensor that a layer has just made (never on one that it was given)."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor
