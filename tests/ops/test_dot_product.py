"""Products whose keys are the same for many queries, which TensorFlow's own product of a CPU repeats wrongly."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.ops.dense.dot_product import scaled_dot_product_attention
from keras_attention.ops.kernels.random_features import positive_features


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("leading", [(), (1,), (1, 1), (1, 0), (0,), (0, 1), (0, 0)], ids=str)
def test_keys_without_axes_of_their_own_are_repeated(rng, leading):
    """Many small sizes: the product of some ended in a crash, of others in wrong numbers. 0 = as the query's."""
    for number in range(100):
        B, H, T, S, D, DV = (int(n) for n in rng.integers(1, 9, 6))
        own = [size or [B, H][-len(leading) :][i] for i, size in enumerate(leading)]
        q = rng.normal(size=(B, H, T, D)).astype("float32")
        k, v = (rng.normal(size=(*own, S, depth)).astype("float32") for depth in (D, DV))
        want = softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(D)) @ v
        np.testing.assert_allclose(scaled_dot_product_attention(q, k, v), want, rtol=1e-4, atol=1e-5)
        if number % 50 == 0:
            run = tf.function(scaled_dot_product_attention, autograph=False)
            np.testing.assert_allclose(run(q, k, v), want, rtol=1e-4, atol=1e-5)


def test_features_for_every_head(rng):
    for _ in range(200):
        B, H, T, D, M = (int(n) for n in rng.integers(1, 10, 5))
        x, rows = (rng.normal(size=shape).astype("float32") for shape in ((B, H, T, D), (M, D)))
        want = np.exp(x @ rows.T - (x * x).sum(axis=-1, keepdims=True) / 2)
        got = positive_features(tf.constant(x), tf.constant(rows), is_query=False, eps=0.0)
        np.testing.assert_allclose(got, want, rtol=1e-4)
