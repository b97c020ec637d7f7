"""One matrix product for projections that share their input: the same numbers, and only where it is allowed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import MultiHeadAttention
from keras_attention.layers.attention import projections
from keras_attention.mechanisms import LongformerAttention

B, T, S, WIDTH = 2, 5, 7, 6


def new_layer(mechanism="softmax", **options):
    return MultiHeadAttention(12, 4, mechanism, **{"head_dim": 3, "bias_initializer": "glorot_uniform", **options})


def inputs(rng, kind):
    x, k, v = (rng.normal(size=(B, n, WIDTH)).astype("float32") for n in (T, S, S))
    return {"self": [x], "cross": [k, k, x], "three": [v, k, x]}[kind]


def run(layer, given, training):
    given = [tf.constant(x) for x in given]
    if len(given) == 3 and np.array_equal(given[0], given[1]):
        given[0] = given[1]  # one tensor twice, as a decoder gives it
    with tf.GradientTape() as tape:
        tape.watch(given)
        out = tf.cast(layer(*given, training=training), tf.float32)
        loss = tf.reduce_sum(out * tf.cos(tf.range(12.0)))
    return out, tape.gradient(loss, [*given, *layer.trainable_variables])


def matrix_products(layer, given, training):
    def call(*given):
        return layer(*((given[0], given[0], given[1]) if len(given) == 2 else given), training=training)

    given = [tf.TensorSpec([None, None, WIDTH])] * {1: 1, 3: 2}[len(given)]
    graph = tf.function(call, autograph=False).get_concrete_function(*given).graph
    return sum(node.type == "MatMul" for node in graph.get_operations())


@pytest.mark.parametrize("kind", ["self", "cross", "three"])
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"use_bias": False}, {"dtype": "float64"}], ids=str)
def test_training_gives_what_separate_products_give(rng, options, kind):
    layer, given = new_layer(**options), inputs(rng, kind)
    out, gradients = run(layer, given, training=True)
    want, separate = run(layer, given, training=False)
    np.testing.assert_allclose(out, want, atol=1e-6)
    assert len(layer.trainable_variables) == (4 if options == {"use_bias": False} else 8)
    for got, other in zip(gradients, separate, strict=True):
        np.testing.assert_allclose(got, other, atol=3e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_in_half_precision_both_round_alike(rng, policy):
    layer, given = new_layer(dtype=policy), inputs(rng, "self")
    tolerance = {"mixed_float16": 2e-3, "mixed_bfloat16": 2e-2}[policy]
    out, gradients = run(layer, given, training=True)
    want, separate = run(layer, given, training=False)
    np.testing.assert_allclose(out, want, atol=tolerance)
    for got, other in zip(gradients, separate, strict=True):
        assert got.dtype == "float32"
        np.testing.assert_allclose(got, other, atol=tolerance * np.abs(other).max())


def test_the_number_of_products(rng):
    """The output's and, together or apart, those of the inputs."""
    layer = new_layer()
    layer.build((None, None, WIDTH))
    assert matrix_products(layer, inputs(rng, "self"), True) == 2
    assert matrix_products(layer, inputs(rng, "self"), False) == 4
    assert matrix_products(layer, inputs(rng, "cross"), True) == 3
    assert matrix_products(layer, inputs(rng, "cross"), False) == 4
    longformer = new_layer(LongformerAttention(radius=1, num_global=1))
    longformer.build((None, None, WIDTH))
    assert matrix_products(longformer, inputs(rng, "self"), True) == 5


def test_kernels_with_more_to_them_stay_apart(rng):
    layer, given = new_layer(), inputs(rng, "self")
    layer.build((None, None, WIDTH))
    layer.key_projection.enable_lora(2)
    layer.key_projection.lora_kernel_b.assign(rng.normal(size=(2, 12)))
    assert matrix_products(layer, given, True) == matrix_products(layer, given, False)
    out, gradients = run(layer, given, training=True)
    np.testing.assert_allclose(out, layer(*given), atol=1e-6)
    assert all(gradient is not None for gradient in gradients)

    class Doubled(keras.layers.Dense):
        def call(self, x):
            return 2 * super().call(x)

    x = tf.ones((1, 2, 3))
    plain = keras.layers.Dense(4)
    others = {
        "subclass": Doubled(4),
        "activation": keras.layers.Dense(4, activation="relu"),
        "no bias": keras.layers.Dense(4, use_bias=False),
        "dtype": keras.layers.Dense(4, dtype="mixed_float16"),
        "penalty": keras.layers.Dense(4, activity_regularizer="l2"),
        "quantised": keras.layers.Dense(4),
    }
    for other in (plain, *others.values()):
        other.build((None, None, 3))
    others["quantised"].quantize("int8")
    assert projections.together([plain, plain], x)
    for name, other in others.items():
        assert not projections.together([plain, other], x), name


def test_frozen_kernels_stay_frozen(rng):
    layer, given = new_layer(), inputs(rng, "self")
    layer.build((None, None, WIDTH))
    layer.value_projection.trainable = False
    _, gradients = run(layer, given, training=True)
    assert len(gradients) == 1 + 6 and all(gradient is not None for gradient in gradients)
