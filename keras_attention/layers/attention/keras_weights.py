"""The options and weights of `keras.layers.MultiHeadAttention`, read for our layer."""

import keras
import numpy as np

# Options of Keras' layer without a counterpart here; some came with later versions of Keras.
_KERAS_ONLY = (
    "use_gate",
    "sliding_window",
    "kernel_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "bias_constraint",
)


def read(layer):
    """What `MultiHeadAttention.from_keras` needs.

    Args:
        layer: a built `keras.layers.MultiHeadAttention`.

    Returns:
        `(options, weights)`: arguments of our layer; and for "query", "key", "value" and "output" the arrays of that
        projection, kernel first, in Keras' shapes.

    Raises:
        TypeError: for another kind of layer. ValueError: for one without weights, or with options that ours has not.
    """
    if not isinstance(layer, keras.layers.MultiHeadAttention):
        raise TypeError(f"from_keras takes a keras.layers.MultiHeadAttention. Got {type(layer).__name__}.")
    config = layer.get_config()
    if not layer.built:
        raise ValueError(f"Layer {layer.name!r} has no weights yet: call it once before from_keras.")
    if config["value_dim"] not in (None, config["key_dim"]):
        raise ValueError(
            f"from_keras needs value_dim equal to key_dim. Got key_dim={config['key_dim']}, "
            f"value_dim={config['value_dim']}."
        )
    if tuple(layer._attention_axes) != (1,):
        raise ValueError(f"from_keras takes layers over one axis (1,). Got attention_axes={layer._attention_axes}.")
    for name in _KERAS_ONLY:
        if config.get(name) not in (None, False):
            raise ValueError(f"from_keras cannot carry over {name}={config[name]!r}: there is no such option here.")
    if len(config["output_shape"] or (0,)) != 1:
        raise ValueError(
            f"from_keras takes layers with one axis of output features. Got output_shape={config['output_shape']}."
        )
    weights = {
        ours: [keras.ops.convert_to_numpy(x) for x in theirs.weights]
        for ours, theirs in (
            ("query", layer._query_dense),
            ("key", layer._key_dense),
            ("value", layer._value_dense),
            ("output", layer._output_dense),
        )
    }
    options = {
        "num_heads": config["num_heads"],
        "head_dim": config["key_dim"],
        "d_model": int(weights["output"][0].shape[-1]),
        "dropout_rate": config["dropout"],
        "use_bias": config["use_bias"],
        "kernel_initializer": config["kernel_initializer"],
        "bias_initializer": config["bias_initializer"],
        "seed": config["seed"],
        "dtype": layer.dtype_policy,
    }
    return options, weights


def assign(layer, weights):
    """Builds a `MultiHeadAttention` of ours for the arrays that `read` gave, puts them in, and returns it.

    Raises:
        ValueError: where its mechanism lacks one of the four projections.
    """
    widths = {name: int(arrays[0].shape[0]) for name, arrays in weights.items()}
    layer.build((None, None, widths["value"]), (None, None, widths["key"]), (None, None, widths["query"]))
    for name, arrays in weights.items():
        if not hasattr(layer, f"{name}_projection"):
            layer.mechanism.refuse(f"weights of a {name} projection, which it has not", "mechanism='softmax'")
        for to, array in zip(getattr(layer, f"{name}_projection").weights, arrays, strict=True):
            to.assign(np.reshape(array, to.shape))
    return layer
