"""What the published models of images share: how their options and tensors are said here."""

import warnings

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.ops.basics.activations import quick_gelu

# Arguments of a model of images that published weights leave open.
OPEN = (
    "num_classes",
    "mechanism",
    "dropout_rate",
    "attention_dropout_rate",
    "drop_path_rate",
    "remat",
    "seed",
    "name",
    "dtype",
)
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


class NewHeadWarning(UserWarning):
    """A model starts with a head that its weights do not hold."""


def head(tensors, kwargs, folder):
    """Which head a model gets: that of the file, a new one where another number of classes is asked for, or none.

    Args:
        tensors: of the file.
        kwargs: what the caller gave; `num_classes` None asks for features.

    Returns:
        `(num_classes, from_file, tensors)`: the last without those of a head that is not taken.
    """
    weight = tensors.get("classifier.weight")
    found = None if weight is None else int(weight.shape[0])
    num_classes = kwargs.get("num_classes", found)
    from_file = found is not None and num_classes == found
    if not from_file:
        tensors = {name: x for name, x in tensors.items() if not name.startswith("classifier.")}
        if num_classes is not None:
            held = "no head" if found is None else f"a head of {found} classes"
            warnings.warn(
                f"{folder} holds {held}: the model starts with a new one of {num_classes}, to be trained.",
                NewHeadWarning,
                stacklevel=3,
            )
    return num_classes, from_file, tensors


def pooling(kwargs, default, from_file):
    """How tokens are pooled. Raises UsageError for what the weights, which hold a class token, do not allow."""
    given = kwargs.get("pooling", default)
    if given == "mean":
        raise UsageError(
            "pooling='mean' is for models without a class token, and the file holds one: use pooling='token_mean' or "
            "pooling='token'."
        )
    if given != default and from_file:
        raise UsageError(
            f"pooling={given!r} does not fit the head in the file, which takes pooling={default!r}: leave it out, or "
            "give num_classes=None for no head or another number for a new one."
        )
    return given


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
