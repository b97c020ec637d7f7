"""Inputs and comparisons for the tests of the approximations and the recurrences."""

import numpy as np
import tensorflow as tf

B, H, T, S, D, DV = 2, 3, 11, 7, 4, 5
X = np.array([[1, 0], [0, 1], [1, 1], [2, -1]], np.float32)[None, None]  # the public reports' example, [1, 1, 4, 2]


def inputs(rng, queries=T, keys=None, scale=1.0):
    keys = queries if keys is None else keys
    shapes = (B, H, queries, D), (B, H, keys, D), (B, H, keys, DV)
    return [rng.normal(0, scale, shape).astype("float32") for shape in shapes]


def real_keys(rng, keys):
    keep = rng.random((B, keys)) < 0.6
    keep[0, :2] = False  # the first causal rows of one sequence have no key at all
    keep[:, -1] = True
    return keep


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance, atol=tolerance)


def gradients(function, arrays, upstream):
    variables = [tf.constant(a) for a in arrays]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        loss = tf.reduce_sum(function(*variables) * upstream)
    return [g.numpy() for g in tape.gradient(loss, variables)]


def numeric_gradients(function, arrays, upstream, step=1e-5):
    """Central differences of a float64 reference in a random direction of each input."""
    out, rng = [], np.random.default_rng(0)
    for i, array in enumerate(arrays):
        direction = rng.normal(size=array.shape)
        values = []
        for sign in (1, -1):
            moved = [np.asarray(a, np.float64) for a in arrays]
            moved[i] = moved[i] + sign * step * direction
            values.append((function(*moved) * upstream).sum())
        out.append((direction, (values[0] - values[1]) / (2 * step)))
    return out


def assert_gradients(function, expected, arrays, upstream, tolerance=2e-3):
    for got, (direction, want) in zip(
        gradients(function, arrays, upstream), numeric_gradients(expected, arrays, upstream)
    ):
        assert np.isfinite(got).all()
        np.testing.assert_allclose((got * direction).sum(), want, rtol=tolerance, atol=tolerance)
