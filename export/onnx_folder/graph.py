"""One TensorFlow function as one ONNX file, with the names, the order and the axis names that were asked for."""

import contextlib
import dataclasses
import importlib
import logging

import keras
import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.onnx_folder import operations
from keras_attention.export.quiet import quiet

OPSET = 18  # the newest that tf2onnx writes
# A protobuf ends at 2 GiB, in tf2onnx and on disk.
EXTERNAL_DATA_OVER = 1_500_000_000
_SMALL = 128  # bytes; smaller tensors stay in the graph, where shapes have to be read

# What makes a graph much smaller, out of tf2onnx' passes; runtimes do the rest. One must not run: of two reshapes in a
# row it removes the first, though the second may keep sizes of its input by a 0 (as after a projection without bias).
_PASSES = (
    "optimize_transpose",
    "fold_constants",
    "loop_optimizer",
    "merge_duplication",
    "reshape_optimizer",
    "remove_identity",
)


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of an ONNX graph.

    Attributes:
        name: of the tensor.
        axes: its shape, an int for a fixed axis and a name for an open one. Output axes are evaluated by some clients:
            they must be made of names of input axes.
        dtype: of an input; outputs come as the function gives them.
    """

    name: str
    axes: tuple
    dtype: tf.DType | None = None

    @property
    def spec(self):
        shape = [axis if isinstance(axis, int) else None for axis in self.axes]
        return tf.TensorSpec(shape, self.dtype, self.name)


def require_packages():
    """The modules tf2onnx, onnx and onnxruntime, or the one error that names what to install."""
    try:
        return tuple(importlib.import_module(name) for name in ("tf2onnx", "onnx", "onnxruntime"))
    except ImportError as error:
        raise UsageError(
            f"An ONNX export needs packages that cannot be imported ({error}): pip install keras-attention[onnx]"
        ) from None


def write(path, function, inputs, outputs, weights, external_data_over=EXTERNAL_DATA_OVER):
    """Converts a function and writes it.

    Args:
        path: the .onnx file; one with external data has a companion <name>_data beside it, named relatively.
        function: takes the inputs by position, returns a list of tensors.
        inputs, outputs: lists of `Port`.
        weights: the Keras variables that the function uses.
        external_data_over: bytes of weights from which on they go to the companion file.

    Raises:
        UsageError: an operation that ONNX does not have, named.
    """
    _, onnx, _ = require_packages()
    external = sum(int(np.prod(w.shape)) * tf.as_dtype(w.dtype).size for w in weights) > external_data_over
    # Weights that are inputs while TensorFlow and tf2onnx look at the graph never meet their 2 GiB limits. Otherwise
    # they are constants, which tf2onnx can fold and fuse.
    apart = list(weights) if external else []
    model = _converted(function, inputs, outputs, apart)
    _check_operations(model, onnx)
    _put_ports(model.graph, inputs, outputs, onnx)
    used = {name for node in _nodes(model.graph) for name in node.input}
    for weight in apart:
        if _weight_name(apart, weight) in used:
            tensor = onnx.numpy_helper.from_array(np.asarray(weight.value), _weight_name(apart, weight))
            model.graph.initializer.append(tensor)
    if external:
        onnx.save_model(
            model, str(path), save_as_external_data=True, location=f"{path.name}_data", size_threshold=_SMALL
        )
    else:
        onnx.save_model(model, str(path))
    # By path: the checker then follows external data.
    onnx.checker.check_model(str(path))


def graph_of_endpoint(endpoint, state=(), past="", present=""):
    """`(function, inputs, outputs)` of an `Endpoint`, as `write` takes them.

    Args:
        endpoint: a signature.
        state: names of its tensors that go in and come out again.
        past, present: what their names begin with on the way in and out.
    """
    wrong = [spec.name for spec in [*endpoint.inputs, *endpoint.outputs.values()] if spec.dtype == tf.string]
    if wrong:
        raise UsageError(f"{wrong[0]!r} holds text, which ONNX Runtime has no operations for. Export a SavedModel.")
    names = list(endpoint.outputs)
    both = sorted({spec.name for spec in endpoint.inputs} & set(names) - set(state))
    if both:
        raise UsageError(
            f"{both[0]!r} is the name of an input and of an output, which ONNX cannot hold. Rename one of the two."
        )

    def function(*tensors):
        results = endpoint.function(*tensors)
        return [results[name] for name in names]

    def port(spec, prefix):
        return Port((prefix if spec.name in state else "") + spec.name, _axes(spec), spec.dtype)

    inputs = [port(spec, past) for spec in endpoint.inputs]
    outputs = [port(endpoint.outputs[name], present) for name in names]
    return function, inputs, outputs


def _axes(spec):
    """Names for open axes. Two tensors share the name of the batch only: nothing says that their lengths are one."""
    if spec.shape.rank is None:
        raise UsageError(f"The rank of {spec.name!r} is unknown: ONNX needs to know it. Give input_signature=")
    return tuple(
        "batch_size" if i == 0 and size is None else f"{spec.name}_axis_{i}" if size is None else size
        for i, size in enumerate(spec.shape)
    )


def _converted(function, inputs, outputs, apart):
    require_packages()
    from tf2onnx import optimizer, tf_loader, tfonnx

    def flat(*tensors):
        values = tensors[len(inputs) :]
        scope = keras.StatelessScope(list(zip(apart, values, strict=True))) if apart else contextlib.nullcontext()
        with scope:
            results = function(*tensors[: len(inputs)])
        if len(results) != len(outputs):
            raise ValueError(f"The function must return {len(outputs)} tensors. Got {len(results)}.")
        return [tf.identity(x) for x in results]

    specs = [port.spec for port in inputs]
    specs += [tf.TensorSpec(w.shape, w.dtype, _weight_name(apart, w)) for w in apart]
    with quiet("absl"):  # it warns of every name with a dot
        concrete = tf.function(flat, autograph=False).get_concrete_function(*specs)
    # Weights that stayed variables are inputs too, until the graph is frozen.
    given = [x.name for x in concrete.inputs if x.dtype != tf.resource]
    returned = [x.name for x in concrete.outputs]
    names = [spec.name for spec in specs] + [port.name for port in outputs]
    passes = {name: kind for name, kind in optimizer._get_optimizers().items() if name in _PASSES}
    # What its log reports as errors is checked and raised here.
    with quiet("tf2onnx", logging.CRITICAL), tf.device("/cpu:0"):
        try:
            frozen = tf_loader.from_function(concrete, given, returned)
            with tf.Graph().as_default() as graph:
                tf.import_graph_def(frozen, name="")
                converted = tfonnx.process_tf_graph(
                    graph,
                    opset=OPSET,
                    continue_on_error=True,
                    input_names=given,
                    output_names=returned,
                    custom_rewriter=[_keep_selections],
                    tensors_to_rename=dict(zip(given + returned, names, strict=True)),
                    custom_op_handlers=operations.handlers(),
                )
                converted = optimizer.optimize_graph(converted, optimizers=passes)
                return converted.make_model("keras_attention")
        except Exception as error:
            # tf2onnx raises whatever its handler of an operation ran into.
            reason = " ".join(str(error).split())[:300]
            raise UsageError(f"The model cannot be converted to ONNX: {reason}") from error


def _keep_selections(graph, nodes):
    """A rewriter of tf2onnx, which would write `where(c, x, y)` as c x + (1 - c) y and let NaN and inf through."""
    for node in nodes:
        if node.type in ("Select", "SelectV2"):
            node.set_attr("handles_nan", 1)
    return nodes


def _weight_name(apart, weight):
    return f"weight_{next(i for i, other in enumerate(apart) if other is weight)}"


def _check_operations(model, onnx):
    """Raises for operations that no runtime knows: tf2onnx only logs them, and writes them out."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    unknown = set()
    for node in _nodes(model.graph):
        try:
            onnx.defs.get_schema(node.op_type, versions.get(node.domain, OPSET), node.domain)
        except onnx.defs.SchemaError:
            unknown.add(node.op_type)
    if unknown:
        raise UsageError(
            "The model cannot be converted to ONNX: it has no operation for TensorFlow's "
            f"{', '.join(sorted(unknown))}. Export a SavedModel, or choose another mechanism."
        )


def _nodes(graph):
    """The nodes of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _nodes(inner)


def _put_ports(graph, inputs, outputs, onnx):
    """Puts inputs and outputs in the order that was asked for, with every open axis named."""
    for values, ports in ((graph.input, inputs), (graph.output, outputs)):
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        missing = [port.name for port in ports if port.name not in kinds]
        if missing:
            raise UsageError(f"The conversion to ONNX lost {missing[0]!r}: nothing in the model depends on it.")
        del values[:]
        values.extend(onnx.helper.make_tensor_value_info(port.name, kinds[port.name], port.axes) for port in ports)
    # Shapes that tf2onnx noted in between use names of its own for the same axes.
    del graph.value_info[:]
