"""Folders of Hugging Face models: config.json and safetensors files, read without their libraries."""

import json
from pathlib import Path

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.files import read_json

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_HEADER_LIMIT = 100_000_000
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
    places = read_json(index, cure=_CURE).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UsageError(f"{index} is damaged: its weight_map does not give a file for each tensor. {_CURE}")
    files = sorted({Path(file).name for file in places.values()})
    return {name: x for file in files for name, x in read_safetensors(folder / file).items()}


def read_safetensors(path):
    """The tensors of one safetensors file as a dict of name -> array, float32 for 16-bit floats.

    The file is eight bytes, the length of the header; the header, JSON with each tensor's dtype, shape and place; and
    the numbers. Nothing in it is run.
    """
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _HEADER_LIMIT:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
            data = np.frombuffer(file.read(), np.uint8)
        header.pop("__metadata__", None)
        return {name: _array(data, **entry) for name, entry in header.items()}
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Give a folder with config.json and model.safetensors.") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} is no complete safetensors file ({reason}). Download it again.") from None


def _array(data, dtype, shape, data_offsets):
    begin, end = data_offsets
    raw = data[begin:end]
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == "BF16":
        # The upper half of a float32's bits.
        values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view(_DTYPES[dtype])
    if values.size != count:
        raise ValueError(f"{values.size} numbers for a tensor of shape {shape}")
    return (values.astype(np.float32) if dtype == "F16" else values).reshape(shape)


# What a tensor's axes are in Keras' order: PyTorch has [out, in] and [out, in, rows, columns].
MATRIX = (1, 0)
KERNEL = (2, 3, 1, 0)


def assign(tensors, wanted, ignored=()):
    """Gives variables the numbers of tensors, all or none of them.

    Args:
        tensors: dict of name -> array.
        wanted: dict of name -> (variable, axes): the tensor's axes in the variable's order, or None where the tensor is
            the variable without leading axes of size 1.
        ignored: endings of names that are no weights.

    Raises:
        UsageError: with the full list of tensors that are missing, that nothing wants, and whose shapes do not fit.
    """
    faults = [f"{name} is missing" for name in sorted(set(wanted) - set(tensors))]
    for name in sorted(set(tensors) - set(wanted)):
        if not name.endswith(tuple(ignored)):
            faults.append(f"{name} has no place in the model")
    for name in sorted(set(wanted) & set(tensors)):
        found, expected = tensors[name].shape, _shape_in_file(*wanted[name])
        if found != expected:
            faults.append(f"{name} has shape {found} where {expected} is expected")
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


def norm(prefix, layer):
    """The entries for a layer normalisation."""
    return {f"{prefix}.weight": (layer.gamma, None), f"{prefix}.bias": (layer.beta, None)}
