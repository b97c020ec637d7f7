"""The projections of attention: what shares its input goes through one matrix product."""

import keras
import tensorflow as tf

from keras_attention.ops.basics import checks


def together(layers, x):
    """Whether dense layers may read x by one product: they are Keras' own, plain, and compute in x's dtype."""
    return all(
        # Not a subclass, which may do more; neither quantised nor with low-rank factors beside the kernel.
        type(layer) is keras.layers.Dense
        and layer.activation is keras.activations.linear
        and layer.quantization_mode is None
        and not layer.lora_enabled
        and layer.activity_regularizer is None
        and layer.compute_dtype == x.dtype.name
        and layer.use_bias == layers[0].use_bias
        for layer in layers
    )


def project(layers, x, head_dim):
    """Heads of several dense layers that read one input, computed by one matrix product.

    The kernels are stored apart, each with its own fan, and laid side by side here. That costs a copy of them, which a
    training step makes up for many times over and a step of decoding does not: callers use this in training.

    Args:
        layers: dense layers for which `together` holds, of widths that `head_dim` divides.
        x: [B, T, E].
        head_dim: D.

    Returns:
        For each layer [B, units / D, T, D].
    """
    batch, length, width = checks.sizes(x)
    kernel = tf.concat([tf.cast(layer.kernel, x.dtype) for layer in layers], axis=1)
    heads = tf.matmul(tf.reshape(x, [-1, width]), kernel)
    if layers[0].use_bias:
        heads = tf.nn.bias_add(heads, tf.concat([tf.cast(layer.bias, x.dtype) for layer in layers], axis=0))
    counts = [layer.units // head_dim for layer in layers]
    heads = tf.transpose(tf.reshape(heads, [batch, length, sum(counts), head_dim]), [0, 2, 1, 3])
    return tf.split(heads, counts, axis=1)
