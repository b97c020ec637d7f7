"""What a model computes in, and whether its weights are numbers at all."""

import keras
import numpy as np

from keras_attention.errors import UsageError

# Least precise first.
_HALF = ("bfloat16", "float16")


def precision_of(model):
    """Name of the least precise dtype that a model computes in.

    A loaded Sequential or functional model says float32 whatever it was made under: its layers know.
    """
    parts = model.layers if _is_graph_of_layers(model) else []
    found = {model.compute_dtype, *(precision_of(part) for part in parts)}
    return next((half for half in _HALF if half in found), model.compute_dtype)


def in_float32(model):
    """The model itself, or one with its weights that computes in float32: CPUs have no kernels for half precision."""
    if precision_of(model) == "float32":
        return model
    copy = _layer_in_float32(model)
    if not _is_graph_of_layers(model):  # which is built as soon as it is made
        copy.build()
    copy.set_weights(model.get_weights())
    return copy


def check_finite(model):
    """Raises where a weight is NaN or infinite: the export would be as wrong as the model, and compare as equal."""
    for weight in model.weights:
        numbers = np.asarray(weight)
        if numbers.dtype.kind not in "iub" and not np.isfinite(numbers.astype(np.float32)).all():
            raise UsageError(
                f"The model cannot be exported: its weight {weight.path} is not finite, so the training diverged. "
                "Export an earlier state, or train again with a lower learning rate. Nothing was written."
            )


def _is_graph_of_layers(model):
    """Whether a model is Keras' own kind, each of whose layers has a policy of its own: Sequential or functional."""
    return isinstance(model, keras.Sequential) or getattr(model, "_inputs_struct", None) is not None


def _layer_in_float32(layer):
    if _is_graph_of_layers(layer):
        return keras.models.clone_model(layer, clone_function=_layer_in_float32)
    return type(layer).from_config({**layer.get_config(), "dtype": "float32"})
