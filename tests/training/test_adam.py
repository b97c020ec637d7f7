"""FusedAdam against Adam as NumPy computes it, and against Keras' own in everything around the update."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.training.optimization.adam import FusedAdam

OPTIONS = {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4}


def by_hand(start, gradients, learning_rate, beta_1, beta_2, epsilon):
    """Algorithm 1 of the paper in the order of its section 2, in float64."""
    x, m, v = start.astype("float64"), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        rate = learning_rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        x = x - rate * m / (np.sqrt(v) + epsilon)
    return x


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float64", 1e-8)])
@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "XLA"])
def test_updates_equal_the_paper(rng, jit, dtype, tolerance):
    start, gradients = rng.normal(size=(5, 3)), rng.normal(size=(4, 5, 3))
    rows = [0, 3, 3]
    table_gradients = np.zeros((4, 6, 2))
    values = rng.normal(size=(4, 3, 2))
    for n, row in enumerate(rows):
        table_gradients[:, row] += values[:, n]
    x, table = keras.Variable(start, dtype=dtype), keras.Variable(np.ones((6, 2)), dtype=dtype)
    optimizer = FusedAdam(**OPTIONS)
    optimizer.build([x, table])

    def step(gradient, values):
        slices = tf.IndexedSlices(values, rows, dense_shape=[6, 2])
        optimizer.apply([gradient, slices], [x, table])

    if jit is not None:
        step = tf.function(step, jit_compile=jit)
    for gradient, value in zip(gradients, values):
        step(tf.constant(gradient, dtype), tf.constant(value, dtype))
    np.testing.assert_allclose(x, by_hand(start, gradients, **OPTIONS), atol=tolerance)
    np.testing.assert_allclose(table, by_hand(np.ones((6, 2)), table_gradients, **OPTIONS), atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.1, "global_clipnorm": 0.5},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
        {"gradient_accumulation_steps": 2},
        {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)},
    ],
    ids=lambda options: " ".join(options),
)
def test_all_that_keras_puts_around_it_stays(rng, options):
    options = {**OPTIONS, "name": "adam", **options}
    gradients = [tf.constant(rng.normal(size=(5, 3)), tf.float32) for _ in range(5)]
    states = []
    for cls in (keras.optimizers.Adam, FusedAdam):
        x = keras.Variable(np.ones((5, 3)), dtype="float32", name="x")
        optimizer = cls(**options)
        for gradient in gradients:
            optimizer.apply([gradient], [x])
        states.append([x, *optimizer.variables])
        config = optimizer.get_config()
    assert [v.path for v in states[0]] == [v.path for v in states[1]]
    for theirs, ours in zip(*states, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert FusedAdam.from_config(config).get_config().keys() == config.keys()


def test_in_half_precision_with_scaled_losses_it_skips_what_overflowed():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_float16")])
    model.compile(keras.optimizers.LossScaleOptimizer(FusedAdam(0.1), initial_scale=2.0**20), "mse", jit_compile=False)
    before = model.get_weights()
    x, y = np.ones((1, 2)), np.full((1, 1), -2.0)
    model.train_on_batch(x, y)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    for _ in range(12):
        model.train_on_batch(x, y)
    assert np.isfinite(model.get_weights()[0]).all() and np.abs(model.get_weights()[0] - before[0]).min() > 0.01
