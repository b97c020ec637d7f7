"""The edge between a model and its clients: named, batch-first tensors in a few dtypes, with lengths beside ids."""

import re

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.quiet import quiet
from keras_attention.ops.basics import checks
from keras_attention.text.special_ids import PAD_ID

_SERVED = (tf.float32, tf.int32, tf.int64, tf.string)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


def outward(x):
    """A tensor as clients get it: float32 for every floating dtype (no REST in half), int32 for booleans."""
    x = tf.convert_to_tensor(x)
    if x.dtype in _SERVED:
        return x
    if x.dtype.is_floating:
        return tf.cast(x, tf.float32)
    if x.dtype.is_bool or x.dtype.is_integer:
        return tf.cast(x, tf.int32)
    raise UsageError(f"A model with tensors of dtype {x.dtype.name} cannot be exported: cast them to float32 or int32.")


def outward_spec(spec, name):
    """The `TensorSpec` a client sees for a model's own, with an open batch axis."""
    dtype = spec.dtype
    if dtype not in _SERVED:
        dtype = tf.float32 if dtype.is_floating else tf.int32
    return tf.TensorSpec([None, *spec.shape[1:]], dtype, name=name)


def inward(x, dtype):
    """A client's tensor as the model has it."""
    return tf.not_equal(x, 0) if dtype == tf.bool else tf.cast(x, dtype)


def real_ids(ids, lengths):
    """Ids [B, S] of which the first `lengths` [B] of each row are real, with padding id 0 in place of the others.

    What stands past the lengths does not matter: a server that joins requests pads them with their first element.
    """
    columns = tf.range(checks.sizes(ids)[1])
    return tf.where(columns < tf.cast(lengths, tf.int32)[:, None], tf.cast(ids, tf.int32), PAD_ID)


def check_names(names, where):
    """Raises for a name that a served signature cannot have."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"The name {name!r} of {where} cannot be exported: use letters, digits, '_', '.' and '-' only."
            )


class Endpoint:
    """One function of an exported model.

    Args:
        name: of the signature.
        function: takes the inputs by position, in the order of `inputs`; returns a dict of name -> tensor.
        inputs: list of `TensorSpec` with names.
        imports: modules that a process must import before it loads the model, for this function's operations.

    Attributes:
        function: as given, with its outputs as clients get them.
        concrete: the traced function.
        outputs: dict of name -> `TensorSpec`.
    """

    def __init__(self, name, function, inputs, imports=()):
        check_names([spec.name for spec in inputs], f"an input of {name!r}")
        self.name = name
        self.inputs = inputs
        self.imports = tuple(imports)

        # Flat arguments: "layers.0.self.key" is no name for an argument of Python.
        def served(*flat):
            outputs = {key: outward(x) for key, x in function(*flat).items()}
            check_names(outputs, f"an output of {name!r}")
            return outputs

        self.function = served
        # It warns of every name with a dot; the signature gets the name as it is.
        with quiet("absl"):
            self.concrete = tf.function(served, autograph=False).get_concrete_function(*inputs)
        self.outputs = {
            key: tf.TensorSpec(x.shape, x.dtype, key) for key, x in self.concrete.structured_outputs.items()
        }

    def described(self):
        """The endpoint as JSON: names, dtypes and shapes (None = open)."""

        def tensors(specs):
            return {spec.name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for spec in specs}

        return {
            "inputs": tensors(self.inputs),
            "outputs": tensors(self.outputs.values()),
            "imports": list(self.imports),
        }
