"""A user's own Keras model: its call under the names of its own inputs and outputs."""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import Endpoint, inward, outward, outward_spec
from keras_attention.export.comparing import random_inputs
from keras_attention.export.onnx_folder.graph import graph_of_endpoint
from keras_attention.export.plan import ExportPlan
from keras_attention.export.precision import precision_of
from keras_attention.export.report import Comparison
from keras_attention.export.state_names import named, packed


class OwnModelPlan(ExportPlan):
    """Any `keras.Model`: `serving_default` or model.onnx. It is taken as it is, in its own precision."""

    otherwise = "the model has no encoder, so that the export holds no search and no texts"
    reasons = {"max_length": "the model has no decoding state of its own"}
    nan_is_meant = True  # in some place, such as the logarithm of nothing

    @classmethod
    def takes(cls, model, images, onnx):
        return True

    def options(self):
        return ("input_signature", "samples")

    def prepare(self):
        self.own, self.structure = own_endpoint(self.model, self.given.input_signature)

    def endpoints(self):
        return {"serving_default": self.own}

    def compare_served(self, served):
        return self.compare_call(lambda given: served["serving_default"](**given))

    def graphs(self):
        return {"model.onnx": graph_of_endpoint(self.own)}

    def compare_onnx(self, sessions):
        return self.compare_call(sessions["model.onnx"])

    def compare_call(self, run):
        """The `Comparison` of the exported call, a function of a dict of tensors by name, with the model's own."""
        comparison = Comparison(precision_of(self.model), nan_is_meant=self.nan_is_meant)
        samples = self.given.samples or random_inputs(self.model, self.structure, np.random.default_rng(0))
        for sample in samples:
            sample = tf.nest.map_structure(lambda spec, x: tf.cast(x, spec.dtype), self.structure, sample)
            tensors = map(outward, named(sample).values())
            got = run({spec.name: x for spec, x in zip(self.own.inputs, tensors, strict=True)})
            for name, x in output_names(self.model, self.model(sample, training=False)).items():
                comparison.numbers(name, got[name], outward(x))
        return comparison


def own_endpoint(model, input_signature=None):
    """The model's call as an endpoint.

    Input names are the keys of a dict, the names of `keras.Input`, or of `call`'s arguments; output names the keys of
    a dict, the names of a functional model's output layers, or output_0, output_1, ...

    Args:
        model: a built `keras.Model`.
        input_signature: `tf.TensorSpec`, or a nested structure of them, as the model is called with; the model's own
            `call_signature` by default. Needed for a subclassed model without one, whose inputs Keras does not record.

    Returns:
        `(endpoint, structure)`, the second the nested `TensorSpec` of the model's argument.
    """
    structure = _inputs_of(model) if input_signature is None else input_signature
    leaves = named(structure)
    single = list(leaves) == [""]
    if single:
        leaves = {structure.name or "inputs": structure}
    else:
        leaves = {_own_name(spec, name, structure): spec for name, spec in leaves.items()}
    if len(leaves) != len(tf.nest.flatten(structure)):
        raise UsageError("Two inputs of the model have the same name: give each keras.Input its own.")
    specs = {name: outward_spec(spec, name) for name, spec in leaves.items()}

    def call(*tensors):
        cast = [inward(x, spec.dtype) if spec.dtype != tf.string else x for x, spec in zip(tensors, leaves.values())]
        inputs = cast[0] if single else packed(structure, dict(zip(named(structure), cast, strict=True)))
        return output_names(model, model(inputs, training=False))

    return Endpoint("serving_default", call, list(specs.values())), structure


def output_names(model, outputs):
    """A model's outputs as a flat dict of name -> tensor."""
    if isinstance(outputs, dict):
        return named(outputs)
    flat = tf.nest.flatten(outputs)
    names = list(getattr(_functional(model), "output_names", None) or [])
    if len(names) != len(flat) or len(set(names)) != len(names):
        names = [f"output_{i}" for i in range(len(flat))]
    return dict(zip(names, flat, strict=True))


def _own_name(spec, path, structure):
    # The elements of a list have no keys: their own names tell them apart.
    return path if isinstance(structure, dict) else spec.name or f"input_{path}"


def _inputs_of(model):
    if hasattr(model, "call_signature"):
        return model.call_signature
    structure = getattr(_functional(model), "_inputs_struct", None)
    if structure is None:
        raise UsageError(
            f"Keras does not record what the subclassed model {model.name!r} takes. Give input_signature=, such "
            "as {'ids': tf.TensorSpec([None, None], tf.int32)}"
        )
    return tf.nest.map_structure(_spec, structure)


def _functional(model):
    return model._functional if isinstance(model, keras.Sequential) else model


def _spec(x):
    # Keras makes up a name where none was given.
    name = None if x.name.startswith("keras_tensor") else x.name
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype, name)
