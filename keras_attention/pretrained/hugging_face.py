"""Folders of Hugging Face models: config.json and safetensors files, without their models' library."""

from pathlib import Path

import numpy as np
import safetensors
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.files import read_json

_CURE = "Give a folder with config.json and model.safetensors."


def read_config(folder, model_type):
    """The config.json of a folder as a dict.

    Raises:
        UsageError: there is none, or it belongs to another type of model.
    """
    path = Path(folder) / "config.json"
    config = read_json(path, cure=_CURE)
    found = config.get("model_type")
    if found != model_type:
        raise UsageError(f"{path} must describe a model of type {model_type!r}. Got {found!r}.")
    return config


def read_tensors(folder):
    """All tensors of a folder: those of model.safetensors, or of the files that its index names.

    Returns:
        dict of name -> array; float32 for 16-bit floats.

    Raises:
        UsageError: a file is missing or damaged.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) and file for file in files.values()):
        raise UsageError(f"{index} is damaged: its weight_map does not name a file for each tensor. Restore it.")
    names = sorted({Path(file).name for file in files.values()})
    return {name: x for file in names for name, x in read_safetensors(folder / file).items()}


def read_safetensors(path):
    """The tensors of one safetensors file as a dict of name -> array, float32 for 16-bit floats."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: _widened(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118, it is no dict
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. {_CURE}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({' '.join(str(error).split())}). {_CURE}") from None
    except (safetensors.SafetensorError, TypeError, AttributeError) as error:  # the last two: numbers NumPy has not
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} is no complete safetensors file ({reason}). Download it again.") from None


def _widened(x):
    # bfloat16 is no float of NumPy's own.
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def built(make, folder):
    """The model that `make()` gives, with its weights.

    Raises:
        UsageError: config.json, or what the caller gave beside it, describes no model that can be made here.
    """
    try:
        model = make()
        model.build()
    except (TypeError, ValueError, OverflowError, MemoryError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"No model can be made of {folder}/config.json and these arguments: {reason}") from None
    return model


def check_arguments(kwargs, allowed, folder):
    """Raises UsageError for arguments of a model that its published weights decide."""
    for name in kwargs:
        if name not in allowed:
            raise UsageError(
                f"{name}= cannot be given: the files of {folder} decide it, or there is no such argument. "
                f"Known are {', '.join(allowed)}."
            )


# What a tensor's axes are in Keras' order: PyTorch has [out, in] and [out, in, rows, columns].
MATRIX = (1, 0)
KERNEL = (2, 3, 1, 0)


def assign(model, tensors, wanted, *, ignored=(), new=()):
    """Gives variables the numbers of tensors, all or none of them.

    Args:
        model: whose trainable variables they are.
        tensors: dict of name -> array.
        wanted: dict of name -> (variable, axes): the tensor's axes in the variable's order, or None where the tensor is
            the variable without leading axes of size 1.
        ignored: endings of names that are no weights.
        new: layers that may have variables which no file holds.

    Raises:
        UsageError: with the full list of tensors that are missing, that nothing wants, and whose shapes do not fit, and
            of trainable variables that no tensor is for, such as those a mechanism adds.
    """
    faults = [f"{name} is missing" for name in sorted(set(wanted) - set(tensors))]
    for name in sorted(set(tensors) - set(wanted)):
        if not name.endswith(tuple(ignored)):
            faults.append(f"{name} has no place in the model")
    for name in sorted(set(wanted) & set(tensors)):
        found, expected = tensors[name].shape, _shape_in_file(*wanted[name])
        if found != expected:
            faults.append(f"{name} has shape {found} where {expected} is expected")
    taken = {id(variable) for variable, _ in wanted.values()}
    taken |= {id(variable) for layer in new for variable in layer.variables}
    faults += [f"{v.path} is not in the file" for v in model.trainable_variables if id(v) not in taken]
    if faults:
        raise UsageError(f"The weights are not those of the model that config.json describes: {'; '.join(faults)}.")
    for name, (variable, axes) in wanted.items():
        x = tensors[name] if axes is None else tensors[name].transpose(axes)
        variable.assign(x.reshape(variable.shape))


def _shape_in_file(variable, axes):
    shape = tuple(variable.shape)
    if axes is not None:
        return tuple(shape[axes.index(i)] for i in range(len(axes)))
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def dense(prefix, layer):
    """The entries of `assign`'s `wanted` for a linear layer."""
    entries = {f"{prefix}.weight": (layer.kernel, MATRIX)}
    return entries if layer.bias is None else {**entries, f"{prefix}.bias": (layer.bias, None)}


def projections(prefix, attention):
    """The entries for the query, key and value projections of an attention layer.

    Raises:
        UsageError: its mechanism lacks one of them.
    """
    entries = {}
    for part in ("query", "key", "value"):
        layer = getattr(attention, f"{part}_projection", None)
        if layer is None:
            name = attention.mechanism.registered_name
            raise UsageError(f"mechanism={name!r} has no {part} projection, which the file holds: use another one.")
        entries |= dense(f"{prefix}.{part}", layer)
    return entries


def norm(prefix, layer):
    """The entries for a layer normalization."""
    return {f"{prefix}.weight": (layer.gamma, None), f"{prefix}.bias": (layer.beta, None)}
