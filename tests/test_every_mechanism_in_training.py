"""What training asks of every mechanism: `model.fit`, gradients in half precision, and no table of all pairs."""

import itertools
import math

import cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from mechanism_layers import (
    WIDTH,
    B,
    K,
    every_mechanism,
    graph_of,
    keep_some,
    new_layer,
    options_for,
    randomize,
    sequence,
    subsets,
    supports,
)

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import class_of


@every_mechanism
def test_fit_lowers_the_loss_and_moves_every_weight(rng, case):
    """In mixed float16 with its loss scaling, masks coming in as Keras' implicit ones, sizes unknown."""
    keras.config.set_dtype_policy("mixed_float16")
    layer = new_layer(case, num_kv_heads=K)
    length = None if case.dynamic else case.length
    x = keras.Input((length, WIDTH))
    hidden = keras.layers.Masking()(x) if supports(case).padding_mask else x
    causal = {"use_causal_mask": True} if supports(case).causal else {}
    model = keras.Model(x, keras.layers.Dense(1, dtype="float32")(layer(hidden, **causal)))
    before = {w.path: w.numpy() for w in layer.weights}
    inputs = sequence(rng, case, batch=16)
    if supports(case).padding_mask:
        inputs *= keep_some(rng, (16, case.length))[..., None]
    targets = inputs.cumsum(axis=1)[..., :1] / case.length
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    losses = model.fit(inputs, targets, batch_size=8, epochs=12, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0], losses
    trained = {w.path for w in layer.trainable_weights}
    for w in layer.weights:
        moved = np.abs(w.numpy() - before[w.path]).max()
        # The key's bias adds one number to all scores of a query: softmax does not see it.
        assert moved == 0 if w.path not in trained else moved > 1e-4 or "key/bias" in w.path, w.path


@every_mechanism
def test_gradients_of_half_precision_are_those_of_float32(rng, case, subtests):
    """On numbers that all three dtypes hold, for the input and every weight, with every option; float16 by XLA."""
    given = [name for name in ("padding", "bias", "causal") if name in itertools.chain(*subsets(case))]
    x = in_half_precision(rng.normal(size=(B, case.length, WIDTH)))
    _, _, arguments = options_for(rng, given, case.length, case.length)
    upstream = rng.normal(size=(B, case.length, 1))

    def gradients(policy, compiled=None):
        layer = new_layer(case, num_kv_heads=K, dtype=policy)
        layer.build((None, None, WIDTH))
        layer.built = True
        randomize(layer)
        for w in layer.trainable_variables:
            w.assign(in_half_precision(w.value))

        def run(start):
            with tf.GradientTape() as tape:
                tape.watch(start)
                loss = tf.reduce_sum(tf.cast(layer(start, **arguments), "float32") * upstream)
            return tape.gradient(loss, [start, *(w.value for w in layer.trainable_variables)])

        names = ["x", *(w.path for w in layer.trainable_variables)]
        run = run if compiled is None else graph_of(run, jit_compile=compiled)
        return names, [np.float64(tf.cast(g, "float32")) for g in run(tf.cast(x, layer.compute_dtype))]

    names, want = gradients("float32")
    scales = {name: np.abs(gradient).max() for name, gradient in zip(names, want, strict=True)}
    for compute, tolerance in zip(("float16", "bfloat16"), case.half_tolerance, strict=True):
        _, got = gradients(f"mixed_{compute}", compiled=compute == "float16")
        for name, one, other in zip(names, want, got, strict=True):
            with subtests.test(compute=compute, name=name):
                assert np.isfinite(other).all()
                # A bias sums what its kernel sums with the inputs as weights, and much of that cancels: what is rounded
                # away is as large as in the kernel (and all there is of the key's bias, which softmax does not see).
                scale = max(scales[name], scales.get(name.removesuffix("bias") + "kernel", 0))
                np.testing.assert_allclose(other, one, atol=2 * tolerance * scale)


def in_half_precision(x):
    """The float32 numbers nearest to `x` of those that float16 and bfloat16 both hold."""
    return tf.cast(tf.cast(tf.cast(x, "float16"), "bfloat16"), "float32")


# Those whose declared memory has no product of both lengths; with sizes of their own where the case's are too short.
LENGTH = 1024
LONG = {"axial": {"shape": [32, 32]}, "linformer": {"max_length": LENGTH, "rank": 4}}
SPARSE = [case for case in cases.CASES if class_of(case.name).supports.memory != "T*S"]


@pytest.mark.parametrize("case", SPARSE, ids=lambda case: case.name)
def test_nothing_holds_all_pairs(case):
    """No tensor of the forward pass and its gradient, loops included, is as large as half a table of scores."""
    heads, s = 2, supports(case)
    mechanism = class_of(case.name)(**LONG.get(case.name, case.options))
    layer = MultiHeadAttention(4 * heads, heads, mechanism)
    layer.build((None, None, 8))
    layer.built = True
    causal = {"use_causal_mask": True} if s.causal else {}

    def both(x, keep):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x, padding_mask=keep if s.padding_mask else None, **causal)
        return tape.gradient(out, [x, *(w.value for w in layer.trainable_variables)])

    specs = tf.TensorSpec([1, LENGTH, 8]), tf.TensorSpec([1, LENGTH], tf.bool)
    graph = tf.function(both).get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    shapes = [shape for node in nodes for shape in node.attr["_output_shapes"].list.shape if not shape.unknown_rank]
    largest = max(math.prod(d.size for d in shape.dim) for shape in shapes if all(d.size >= 0 for d in shape.dim))
    assert LENGTH * 8 <= largest < heads * LENGTH * LENGTH / 2
