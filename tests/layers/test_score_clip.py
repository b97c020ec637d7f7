"""Scores kept within a limit, the documents' 5.3, in the dense mechanisms."""

import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import ReluAttention, SoftmaxAttention

B, T, WIDTH, HEADS, KV_HEADS, CLIP = 2, 6, 8, 4, 2, 1.5


def made(cls, **options):
    layer = MultiHeadAttention(WIDTH, HEADS, mechanism=cls(**options), num_kv_heads=KV_HEADS, seed=1)
    layer.build((None, None, WIDTH))
    layer.built = True
    return layer


def clipped_loop(layer, x, limits, bias):
    q, k, v = reference.heads(layer, x, x, x)
    scores = np.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(layer.head_dim) + bias
    scores = np.minimum(np.maximum(scores, -CLIP), CLIP)
    keep = limits.keep(*scores.shape)
    if isinstance(layer.mechanism, SoftmaxAttention):
        weights = np.where(keep, np.exp(scores), 0)
        weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    else:
        weights = np.where(keep, np.maximum(scores, 0), 0) / np.maximum(keep.sum(-1, keepdims=True), 1)
    return reference.project(reference.join(weights @ v), layer.output_projection), scores


@pytest.mark.parametrize("cls", [SoftmaxAttention, ReluAttention])
def test_scores_stay_within_the_limit(rng, cls):
    layer = made(cls, score_clip=CLIP)
    x = 3 * rng.normal(size=(B, T, WIDTH)).astype("float32")
    bias = rng.normal(size=(HEADS, T, T)).astype("float32")
    padding = np.array([[True] * 4 + [False] * 2, [False] * 6])
    limits = reference.Limits(padding=padding, causal=True)
    want, scores = clipped_loop(layer, x, limits, bias)
    assert 0.1 < (np.abs(scores) == CLIP).mean() < 0.9
    got = layer(x, padding_mask=padding, use_causal_mask=True, bias=bias)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    free = made(cls)
    free.set_weights(layer.get_weights())
    assert np.abs(free(x, padding_mask=padding, use_causal_mask=True, bias=bias) - want).max() > 1e-2
    again = MultiHeadAttention.from_config(layer.get_config())
    again(x)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x), layer(x))
    steps, state = [], layer.init_state(B, max_length=T)
    for t in range(T):
        out, state = layer(x[:, t : t + 1], state=state)
        steps.append(out)
    np.testing.assert_allclose(np.concatenate(steps, axis=1), layer(x, use_causal_mask=True), rtol=1e-5, atol=1e-5)


def test_a_score_beyond_the_limit_has_no_gradient():
    layer = MultiHeadAttention(1, 1, mechanism=SoftmaxAttention(score_clip=50.0), use_bias=False)
    x = tf.constant([[[100.0], [200.0]]])
    layer(x)
    layer.set_weights([np.ones((1, 1))] * 4)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x)[0, 0])
    # Both scores are 50: the output is the mean, and depends on x through the values alone.
    np.testing.assert_allclose(loss, 150.0)
    np.testing.assert_allclose(tape.gradient(loss, x)[0, :, 0], [0.5, 0.5])


def test_limits_that_cannot_be():
    with pytest.raises(ValueError, match=r"score_clip must be a number above 0. Got score_clip=0"):
        ReluAttention(score_clip=0)
    with pytest.raises(ValueError, match=r"'softmax' does not support score_clip=5 with cache='rolling'; use cache="):
        SoftmaxAttention(cache="rolling", score_clip=5)
