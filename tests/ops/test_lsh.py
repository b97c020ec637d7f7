"""Attention in hashed buckets against a float64 loop over buckets and their members."""

import numpy as np
import pytest
import reference_kernels as reference
import tensorflow as tf
from kernel_checks import DV, B, H, S, T, X, assert_gradients, close, inputs, real_keys

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import LSHAttention
from keras_attention.ops.kernels.lsh import bucket_of, lsh_attention, rotations


@pytest.mark.parametrize("num_buckets, bucket_size, rounds", [(1, 50, 1), (1, 2, 2), (4, 2, 3), (4, 50, 2), (6, 1, 1)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_lsh_equals_the_loop(rng, num_buckets, bucket_size, rounds, causal):
    q, _, v = inputs(rng, T)
    directions = rotations(q.shape[-1], rounds, num_buckets, seed=1)
    for keep in (None, real_keys(rng, T)):
        options = dict(num_buckets=num_buckets, bucket_size=bucket_size)
        got = lsh_attention(q, v, directions, padding_mask=keep, use_causal_mask=causal, **options)
        close(got, reference.lsh(q, v, directions, padding_mask=keep, causal=causal, **options))


def test_lsh_of_the_public_report():
    """trax#1664: one bucket is exact attention to unit keys, oneself left out; a lone token attends to itself."""
    directions = rotations(2, 1, 1, seed=0)
    got = lsh_attention(X, X, directions, num_buckets=1, bucket_size=4)
    want = [[1.194711, 0.169169], [1.215801, 0.272331], [0.879117, 0.120883], [0.921173, 0.34241]]
    close(got[0, 0], want, 1e-6)
    one = X[:, :, 3:]
    close(lsh_attention(one, one, rotations(2, 2, 4, seed=0), num_buckets=4, bucket_size=2), one, 1e-6)
    five = np.concatenate([X, X[:, :, 1:2] + 0.5], axis=2)
    options = dict(num_buckets=2, bucket_size=2)
    padded = np.concatenate([five, np.full((1, 1, 3, 2), 9, np.float32)], axis=2)
    directions = rotations(2, 2, 2, seed=0)
    alone = lsh_attention(five, five, directions, **options)
    keep = np.arange(8)[None] < 5
    got = lsh_attention(padded, padded, directions, padding_mask=keep, **options)
    close(got[:, :, :5], alone, 1e-6)
    assert not np.any(got[:, :, 5:])
    got = lsh_attention(padded[:, :, ::-1], padded[:, :, ::-1], directions, padding_mask=keep[:, ::-1], **options)
    close(got[:, :, 3:][:, :, ::-1], alone, 1e-6)


def test_lsh_buckets_hold_similar_directions(rng):
    x = rng.normal(size=(1, 1, 500, 16)).astype("float32")
    near = x + 0.1 * rng.normal(size=x.shape).astype("float32")
    directions = rotations(16, 4, 8, seed=3)
    buckets, others = bucket_of(x, directions, 8).numpy(), bucket_of(near, directions, 8).numpy()
    assert buckets.shape == (1, 1, 4, 500) and set(buckets.ravel()) == set(range(8))
    assert (buckets == others).mean() > 0.8 > 0.3 > (buckets == np.roll(others, 1, axis=-1)).mean()
    # The opposite direction is in the opposite bucket.
    np.testing.assert_array_equal(bucket_of(-x, directions, 8), (buckets + 4) % 8)


def test_lsh_future_moves_nothing_before_it_even_when_lengths_change(rng):
    q, _, v = inputs(rng, 40)
    directions = rotations(q.shape[-1], 2, 4, seed=1)
    options = dict(num_buckets=4, bucket_size=3, use_causal_mask=True)
    whole = lsh_attention(q, v, directions, **options)
    for length in (1, 7, 25):
        close(lsh_attention(q[:, :, :length], v[:, :, :length], directions, **options), whole[:, :, :length], 1e-6)


def test_lsh_gradients_equal_the_loops(rng):
    q, _, v = inputs(rng, S)
    directions, keep = rotations(q.shape[-1], 2, 2, seed=1), real_keys(rng, S)
    assert_gradients(
        lambda q, v: lsh_attention(q, v, directions, num_buckets=2, bucket_size=2, padding_mask=keep),
        lambda q, v: reference.lsh(q, v, directions, 2, 2, keep),
        [q, v],
        rng.normal(size=(B, H, S, DV)).astype("float32"),
    )


def test_lsh_vector_of_zeros_has_finite_gradients():
    q = tf.zeros([1, 1, 5, 4])
    with tf.GradientTape() as tape:
        tape.watch(q)
        out = lsh_attention(q, tf.ones([1, 1, 5, 2]), rotations(4, 2, 4, seed=0), num_buckets=4, bucket_size=2)
        loss = tf.reduce_sum(out**2)
    assert np.isfinite(out).all() and np.isfinite(tape.gradient(loss, q)).all()


def test_lsh_hashes_by_its_seed(rng):
    x = rng.normal(size=(2, 12, 8)).astype("float32")
    one, same, other = (
        MultiHeadAttention(8, 2, mechanism=LSHAttention(num_buckets=4, bucket_size=2, seed=seed)) for seed in (1, 1, 2)
    )
    for layer in (one, same, other):
        layer(x)
        for to, of in zip(layer.trainable_weights, one.trainable_weights):
            to.assign(of)
    np.testing.assert_array_equal(one(x), one(x))
    np.testing.assert_array_equal(one(x), same(x))
    assert np.abs(one(x) - other(x)).max() > 1e-4
    with pytest.raises(ValueError, match=r"num_buckets must be 1 or even.*use 6"):
        LSHAttention(num_buckets=5)
