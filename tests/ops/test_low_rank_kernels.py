"""Nystrom's landmarks and Linformer's mixtures against float64 loops, at sizes that are all different."""

import numpy as np
import pytest
import reference_kernels as reference
import tensorflow as tf
from kernel_checks import DV, B, D, H, S, T, X, assert_gradients, close, inputs, real_keys

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import LinformerAttention, NystromAttention
from keras_attention.ops.kernels.linformer import linformer_attention
from keras_attention.ops.kernels.nystrom import landmark_runs, nystrom_attention, pseudo_inverse

FULL = [[1.339523, -0.118342], [0.72338, 0.642092], [1, 0.403355], [1.825937, -0.776407]]


# Nystrom


@pytest.mark.parametrize("num_landmarks", [1, 3, 5, 20])  # fewer than tokens, not dividing them, more than they are
@pytest.mark.parametrize("padded", [False, True], ids=["all_keys", "padded"])
def test_nystrom_equals_the_loop(rng, num_landmarks, padded):
    q, k, v = inputs(rng, T, S)
    keys, queries = (real_keys(rng, S), real_keys(rng, T)) if padded else (None, None)
    got = nystrom_attention(q, k, v, num_landmarks=num_landmarks, iterations=4, padding_mask=keys, query_mask=queries)
    close(got, reference.nystrom(q, k, v, num_landmarks, keys, queries, iterations=4))


def test_nystrom_convolution_equals_the_loop(rng):
    q, k, v = inputs(rng, T)
    kernel, keep = rng.normal(size=(5, H)).astype("float32"), real_keys(rng, T)
    got = nystrom_attention(q, k, v, num_landmarks=3, iterations=4, kernel=kernel, padding_mask=keep, query_mask=keep)
    close(got, reference.nystrom(q, k, v, 3, keep, keep, kernel, iterations=4))


def test_nystrom_of_the_public_report():
    """nystrom-attention#5: a landmark for each token is full attention; two landmarks with a converged inverse.

    The landmark matrix has condition number 18.7: float32 keeps 5 digits.
    """
    close(nystrom_attention(X, X, X, num_landmarks=4, iterations=15)[0, 0], FULL, 5e-5)
    double = X.astype("float64")
    close(nystrom_attention(double, double, double, num_landmarks=4, iterations=15)[0, 0], FULL, 1e-6)
    want = [[1.307116, -0.067973], [0.678524, 0.729999], [1.106051, 0.187271], [1.75776, -0.640047]]
    close(nystrom_attention(X, X, X, num_landmarks=2, iterations=15)[0, 0], want, 5e-5)


def test_nystrom_padding_on_either_side_changes_nothing(rng):
    q, k, v = inputs(rng, S)
    want = nystrom_attention(q, k, v, num_landmarks=3)
    garbage = [50 * x for x in inputs(rng, 4)]
    for left in (False, True):
        parts = zip(garbage, (q, k, v)) if left else zip((q, k, v), garbage)
        longer = [np.concatenate(pair, axis=2) for pair in parts]
        places = np.arange(S + 4)[None].repeat(B, 0)
        keep = places >= 4 if left else places < S
        got = nystrom_attention(*longer, num_landmarks=3, padding_mask=keep, query_mask=keep)
        close(got[:, :, 4:] if left else got[:, :, :S], want)
        assert not np.any(got[:, :, :4] if left else got[:, :, S:])


def test_nystrom_landmarks_are_runs_of_nearly_equal_size():
    runs, filled = landmark_runs(11, 4, None, tf.float32)
    sizes = (runs.numpy() > 0).sum(axis=-1)[0]
    assert filled.numpy().all() and sizes.sum() == 11 and sizes.max() - sizes.min() <= 1
    np.testing.assert_allclose(runs.numpy().sum(axis=-1), 1, rtol=1e-6)
    assert (np.diff(runs.numpy()[0].argmax(axis=0)) >= 0).all()
    real = np.array([[False, True, False, True], [False] * 4])
    runs, filled = landmark_runs(4, 3, real, tf.float32)
    np.testing.assert_array_equal(filled, [[True, True, False], [False] * 3])
    np.testing.assert_array_equal(runs[0], [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]])


def test_pseudo_inverse_converges_and_leaves_zeros_out(rng):
    a = rng.normal(size=(2, 5, 5)) + 3 * np.eye(5)
    a[1, 4], a[1, :, 4] = 0, 0  # one landmark is empty
    close(pseudo_inverse(tf.constant(a), 20), np.linalg.pinv(a), 1e-9)
    errors = [np.abs(pseudo_inverse(tf.constant(a), n) - np.linalg.pinv(a)).max() for n in (2, 4, 6)]
    assert errors[2] < errors[1] < errors[0]
    close(pseudo_inverse(tf.zeros([3, 3]), 6), np.zeros((3, 3)))


def test_nystrom_result_does_not_depend_on_the_batch(rng):
    q, k, v = inputs(rng, T)
    together = nystrom_attention(q, k, v, num_landmarks=3, iterations=3)
    alone = [
        nystrom_attention(q[i : i + 1], k[i : i + 1], v[i : i + 1], num_landmarks=3, iterations=3) for i in range(B)
    ]
    close(together, tf.concat(alone, axis=0), 1e-6)


def test_nystrom_gradients_equal_the_loops(rng):
    q, k, v = inputs(rng, S)
    keep, upstream = real_keys(rng, S), rng.normal(size=(B, H, S, DV)).astype("float32")
    assert_gradients(
        lambda q, k, v: nystrom_attention(q, k, v, num_landmarks=3, iterations=4, padding_mask=keep, query_mask=keep),
        lambda q, k, v: reference.nystrom(q, k, v, 3, keep, keep, iterations=4),
        [q, k, v],
        upstream,
    )


def test_nystrom_checks_its_options():
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        NystromAttention(kernel_size=4)
    with pytest.raises(ValueError, match="num_landmarks must be an integer of at least 1"):
        NystromAttention(num_landmarks=0)


# Linformer


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per_head"])
@pytest.mark.parametrize("padded", [False, True], ids=["all_keys", "padded"])
def test_linformer_equals_the_loop(rng, per_head, padded):
    q, k, v = inputs(rng, T, S)
    keys, queries = (real_keys(rng, S), real_keys(rng, T)) if padded else (None, None)
    for limit in (S, S + 5):
        shape = (H, limit, 6) if per_head else (limit, 6)
        rows = [rng.normal(size=shape).astype("float32") for _ in range(2)]
        got = linformer_attention(q, k, v, *rows, padding_mask=keys, query_mask=queries)
        close(got, reference.linformer(q, k, v, *rows, keys, queries))


def test_linformer_padding_on_either_side_changes_nothing(rng):
    q, k, v = inputs(rng, T, S)
    rows = [rng.normal(size=(S + 3, 6)).astype("float32") for _ in range(2)]
    want = linformer_attention(q, k, v, *rows)
    _, *garbage = (50 * x for x in inputs(rng, 3))
    keep = np.arange(S + 3)[None].repeat(B, 0)
    longer = [np.concatenate(pair, axis=2) for pair in zip((k, v), garbage)]
    close(linformer_attention(q, *longer, *rows, padding_mask=keep < S), want)
    longer = [np.concatenate(pair, axis=2) for pair in zip(garbage, (k, v))]
    close(linformer_attention(q, *longer, *rows, padding_mask=keep >= 3), want)


def test_linformer_with_identity_mixtures_is_softmax_attention(rng):
    q, k, v = inputs(rng, T, S)
    close(
        linformer_attention(q, k, v, np.eye(S, dtype="float32"), np.eye(S, dtype="float32")), reference.softmax(q, k, v)
    )


def test_linformer_refuses_longer_sequences_known_or_not(rng):
    q, k, v = inputs(rng, T)
    rows = np.ones((T - 1, 2), "float32")
    with pytest.raises(ValueError, match=rf"at most max_length={T - 1} keys. Got {T}; .*nystrom"):
        linformer_attention(q, k, v, rows, rows)
    spec = [tf.TensorSpec([None, H, None, size]) for size in (D, D, DV)]

    def attend(q, k, v):
        return linformer_attention(q, k, v, rows, rows)

    with pytest.raises(tf.errors.InvalidArgumentError, match="build it with a larger max_length"):
        tf.function(attend, input_signature=spec)(q, k, v)
    # A compiled graph drops the check: the result says so itself.
    compiled = tf.function(attend, input_signature=spec, jit_compile=True)
    assert np.isnan(compiled(q, k, v)).all()
    assert np.isfinite(compiled(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:])).all()


@pytest.mark.parametrize("sharing, weights", [("heads", 2), ("key_value", 1), ("none", 2)])
def test_linformer_shares_its_projections_as_told(rng, sharing, weights):
    layer = MultiHeadAttention(8, 2, mechanism=LinformerAttention(max_length=9, rank=3, sharing=sharing))
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    layer(x)
    rows = layer.mechanism.trainable_weights
    assert len(rows) == weights and all(w.shape == ((2, 9, 3) if sharing == "none" else (9, 3)) for w in rows)
    assert (layer.mechanism.key_rows is layer.mechanism.value_rows) == (sharing == "key_value")
    with pytest.raises(ValueError, match="sharing must be one of 'heads', 'key_value', 'none'"):
        LinformerAttention(sharing="layers")
