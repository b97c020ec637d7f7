"""What the published models of images share: how their options and tensors are said here."""

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.ops.basics.activations import quick_gelu

# Their "gelu" is the exact one, as is Keras'.
_ACTIVATIONS = {"gelu": "gelu", "quick_gelu": quick_gelu, "relu": "relu", "silu": "silu"}


def activation(config):
    """The activation that config.json names."""
    name = config["hidden_act"]
    if name not in _ACTIVATIONS:
        raise UsageError(f"hidden_act must be one of {', '.join(_ACTIVATIONS)}. Got {name!r}.")
    return _ACTIVATIONS[name]


def size(value):
    """An int or a pair of ints, as config.json has image_size and patch_size."""
    return tuple(value) if isinstance(value, list) else value


def required(config, folder, *names):
    """Raises UsageError where config.json lacks what no default can stand for."""
    missing = [name for name in names if config.get(name) is None]
    if missing:
        raise UsageError(f"{folder}/config.json does not say {', '.join(missing)}.")


def split_prefix(tensors, prefix):
    """The tensors with the prefix of a backbone taken off; a model without a head has none."""
    return {name.removeprefix(prefix): x for name, x in tensors.items()}


def number_of_classes(tensors):
    """Classes of the head in a file, None where it has none."""
    return int(tensors["classifier.weight"].shape[0]) if "classifier.weight" in tensors else None


def without_leading_ones(tensors, *names):
    """The tensors, with those of these names taken out of axes of size 1, with which they are broadcast."""
    return {name: x.reshape(_stripped(x.shape)) if name in names else x for name, x in tensors.items()}


def _stripped(shape):
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def zeros_for(tensors, names, like):
    """The tensors, with zeros for biases that a model was trained without: `names` of the size of `like`'s rows."""
    given = {
        name: np.zeros(tensors[other].shape[:1], "float32") for name, other in zip(names, like) if other in tensors
    }
    return {**given, **tensors}
