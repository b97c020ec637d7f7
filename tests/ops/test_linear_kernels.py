"""Linear attention and random features against float64 loops, at sizes that are all different."""

from functools import partial

import keras
import numpy as np
import pytest
import reference_kernels as reference
import tensorflow as tf
from kernel_checks import DV, B, D, H, S, T, X, assert_gradients, close, gradients, inputs, real_keys

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import LinearAttention, PerformerAttention
from keras_attention.ops.kernels.linear import linear_attention
from keras_attention.ops.kernels.random_features import orthogonal_features, performer_attention


@pytest.mark.parametrize("feature_map", ["elu", "relu", "softplus"])
@pytest.mark.parametrize("padded", [False, True], ids=["all_keys", "padded"])
@pytest.mark.parametrize(
    "queries, keys, causal", [(T, S, False), (S, T, True), (T, S, True), (T, T, True), (1, S, True)]
)
def test_linear_equals_the_loop(rng, queries, keys, causal, padded, feature_map):
    q, k, v = inputs(rng, queries, keys)
    mask = real_keys(rng, keys) if padded else None
    want = reference.linear(q, k, v, mask, causal, feature_map)
    for chunk in (1, 3, 7, 128):
        options = dict(padding_mask=mask, use_causal_mask=causal, feature_map=feature_map, chunk_size=chunk)
        close(linear_attention(q, k, v, **options), want)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_gradients_equal_the_loops(rng, causal):
    q, k, v = inputs(rng, S)
    mask, upstream = real_keys(rng, S), rng.normal(size=(B, H, S, DV)).astype("float32")
    assert_gradients(
        lambda q, k, v: linear_attention(q, k, v, padding_mask=mask, use_causal_mask=causal, chunk_size=3),
        lambda q, k, v: reference.linear(q, k, v, mask, causal),
        [q, k, v],
        upstream,
    )


def test_linear_attention_of_the_public_report():
    """fast-transformers#105: the mask belongs in the numerator and in the normalizer, for a batch of one too."""
    got = linear_attention(X, X, X, padding_mask=[[True, True, True, False]])
    close(got[0, 0], [[0.733333, 0.666667], [0.666667, 0.733333], [0.7, 0.7], [0.778154, 0.621846]], 1e-6)
    got = linear_attention(X, X, X, use_causal_mask=True)
    close(got[0, 0], [[1, 0], [0.444444, 0.555556], [0.7, 0.7], [1.207878, 0.051442]], 1e-6)
    x = np.concatenate([np.full((1, 1, 1, 2), 7, np.float32), X[:, :, :3]], axis=2)
    got = linear_attention(x, x, x, padding_mask=[[False, True, True, True]], use_causal_mask=True)
    close(got[0, 0], [[0, 0], [1, 0], [0.444444, 0.555556], [0.7, 0.7]], 1e-6)


def test_linear_features_that_are_all_zero_make_a_zero_row_with_zero_gradients():
    x = np.array([[[[-1, -1], [2, 1]]]], np.float32)
    close(linear_attention(x, x, x, feature_map="relu")[0, 0], [[0, 0], [2, 1]], 1e-6)
    for causal in (False, True):
        attend = partial(linear_attention, padding_mask=[[False, False]], use_causal_mask=causal)
        close(attend(x, x, x), np.zeros_like(x))
        assert all((g == 0).all() for g in gradients(attend, [x, x, x], np.ones_like(x)))


def test_linear_padding_changes_nothing_even_when_it_is_nan(rng):
    q, k, v = inputs(rng, S)
    pad = np.full((B, H, 3, D), np.nan, np.float32)
    longer = [np.concatenate([x, np.resize(pad, (B, H, 3, x.shape[-1]))], axis=2) for x in (k, v)]
    keep = np.array([[True] * S + [False] * 3] * B)
    close(linear_attention(q, *longer, padding_mask=keep), linear_attention(q, k, v), 1e-6)
    left = [np.concatenate([np.resize(pad, (B, H, 3, x.shape[-1])), x], axis=2) for x in (k, v)]
    got = linear_attention(q, *left, padding_mask=keep[:, ::-1], use_causal_mask=True, chunk_size=4)
    close(got, linear_attention(q, k, v, use_causal_mask=True), 1e-6)


def test_linear_future_moves_nothing_before_it(rng):
    q, k, v = inputs(rng, T)
    changed = [np.concatenate([x[:, :, :6], x[:, :, 6:] + 100], axis=2) for x in (q, k, v)]
    for chunk in (2, 4, 128):
        one, other = (linear_attention(*x, use_causal_mask=True, chunk_size=chunk) for x in ((q, k, v), changed))
        np.testing.assert_array_equal(one[:, :, :6], other[:, :, :6])
        assert np.abs(one[:, :, 6:] - other[:, :, 6:]).max() > 1


def test_linear_prefill_and_steps_equal_one_pass(rng):
    q, k, v = inputs(rng, T)
    keep = real_keys(rng, T)
    options = dict(use_causal_mask=True, return_state=True, chunk_size=3)
    want, last = linear_attention(q, k, v, padding_mask=keep, **options)
    parts, state = [], None
    for start, end in [(0, 5), (5, 9), (9, 10), (10, 11)]:
        part = (x[:, :, start:end] for x in (q, k, v))
        out, state = linear_attention(*part, padding_mask=keep[:, start:end], state=state, **options)
        parts.append(out)
    close(tf.concat(parts, axis=2), want)
    close(state["s"], last["s"])
    close(state["z"], last["z"])
    assert state["s"].shape == (B, H, D, DV) and state["z"].shape == (B, H, D)


def test_linear_takes_free_leading_axes(rng):
    q, k, v = inputs(rng, S)
    close(
        linear_attention(q[0, 0], k[0, 0], v[0, 0], use_causal_mask=True), reference.linear(q, k, v, causal=True)[0, 0]
    )
    keep = real_keys(rng, S)
    want = reference.linear(q, k, v, keep)
    close(linear_attention(q[:, 1], k[:, 1], v[:, 1], padding_mask=keep), want[:, 1])
    close(linear_attention(q, k, v, keep[:, None, None, :]), want)
    close(linear_attention(q[0, 0], k[0, 0], v[0, 0], keep[0]), want[0, 0])
    close(linear_attention(*(x[:, None] for x in (q, k, v)), padding_mask=keep), want[:, None])


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_with_unknown_sizes_and_under_xla(rng, causal):
    spec = [tf.TensorSpec([None, H, None, size], tf.float32) for size in (D, D, DV)]

    def attend(q, k, v):
        return linear_attention(q, k, v, use_causal_mask=causal, chunk_size=4)

    graph = tf.function(attend, input_signature=spec)
    for length in (1, 6, T):
        q, k, v = inputs(rng, length)
        close(graph(q, k, v), reference.linear(q, k, v, causal=causal))
    q, k, v = inputs(rng, T)
    upstream = rng.normal(size=(B, H, T, DV)).astype("float32")
    compiled = tf.function(lambda q, k, v: tf.gradients(attend(q, k, v) * upstream, [q, k, v]), jit_compile=True)
    for got, want in zip(compiled(*map(tf.constant, (q, k, v))), gradients(attend, [q, k, v], upstream)):
        close(got, want, 1e-4)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 5e-3), ("bfloat16", 3e-2), ("float64", 1e-10)])
def test_linear_keeps_the_dtype_and_sums_in_float32(rng, dtype, tolerance):
    q, k, v = (tf.cast(x * 20, dtype) for x in inputs(rng, 300))  # sums beyond 65504
    got = linear_attention(q, k, v, use_causal_mask=True)
    assert got.dtype == dtype
    want = linear_attention(*(tf.cast(x, tf.float64) for x in (q, k, v)), use_causal_mask=True)
    close(tf.cast(got, tf.float64), want, tolerance * (20 if dtype != "float64" else 1))


def test_linear_refuses_what_it_cannot_honour(rng):
    q, k, v = inputs(rng, S)
    with pytest.raises(ValueError, match=r"differs between queries.*padding_mask=.*softmax"):
        linear_attention(q, k, v, np.tril(np.ones((S, S), bool)))
    with pytest.raises(ValueError, match=r"feature_map must be one of .*'elu'.* Got 'gelu'"):
        linear_attention(q, k, v, feature_map="gelu")
    with pytest.raises(ValueError, match="needs use_causal_mask=True"):
        linear_attention(q, k, v, return_state=True)
    with pytest.raises(ValueError, match="must share their last axis"):
        linear_attention(q[..., :3], k, v)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_performer_equals_the_loop(rng, causal):
    q, k, v = inputs(rng, T, S)
    features = orthogonal_features(9, D, seed=3)
    for mask in (None, real_keys(rng, S)):
        want = reference.positive_features(q, k, v, features, mask, causal, eps=1e-6)
        for chunk in (3, 128):
            got = performer_attention(q, k, v, features, padding_mask=mask, use_causal_mask=causal, chunk_size=chunk)
            close(got, want)


def test_performer_features_are_orthogonal_and_as_long_as_normal_vectors():
    rows = orthogonal_features(5000, 8, seed=1)
    blocks = rows.reshape(-1, 8, 8)
    products = blocks @ blocks.transpose(0, 2, 1)
    assert np.abs(products - np.eye(8) * products).max() < 1e-4
    np.testing.assert_allclose((rows**2).sum(axis=1).mean(), 8, rtol=0.02)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=0.05)
    np.testing.assert_array_equal(rows, orthogonal_features(5000, 8, seed=1))
    assert np.abs(rows - orthogonal_features(5000, 8, seed=2)).max() > 1


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_performer_error_against_softmax_falls_with_the_number_of_features(rng, causal):
    q, k, v = inputs(rng, 24, scale=0.6)
    want = reference.softmax(q, k, v, causal=causal)
    errors = []
    for count in (4, 64, 1024):
        draws = (orthogonal_features(count, D, seed) for seed in range(5))
        outputs = [performer_attention(q, k, v, rows, use_causal_mask=causal) for rows in draws]
        errors.append(np.mean([np.abs(out - want).mean() for out in outputs]))
    # Sixteen times as many features: a quarter of the error, in expectation.
    assert errors[1] < 0.45 * errors[0] and errors[2] < 0.45 * errors[1], errors


def test_performer_stays_finite_where_scores_are_enormous(rng):
    q, k, v = (tf.constant(x) for x in inputs(rng, S, scale=60.0))
    features = orthogonal_features(16, D, seed=0)
    for attend in (performer_attention, partial(performer_attention, use_causal_mask=True)):
        out = attend(q, k, v, features)
        assert np.isfinite(out).all() and (np.abs(out) <= np.abs(v).max() * 1.001).all()
        assert all(np.isfinite(g).all() for g in gradients(lambda *x: attend(*x, features), [q, k, v], 1.0))  # noqa: B023


def cubed(x):
    return tf.nn.relu(x) ** 3


@keras.saving.register_keras_serializable("keras_attention_tests")
def stored(x):
    return tf.nn.relu(x) ** 3


def softplus(x):  # a name that Keras knows as something else
    return tf.nn.relu(x) ** 3


@pytest.mark.parametrize("function", [lambda x: tf.nn.relu(x) ** 3, cubed, stored, softplus], ids=lambda f: f.__name__)
def test_a_layer_takes_any_function_as_its_feature_map(rng, function):
    mechanism = LinearAttention(feature_map=function)
    layer = MultiHeadAttention(8, 2, mechanism=mechanism, use_bias=False, kernel_initializer="identity")
    x = rng.normal(size=(B, T, 8)).astype("float32")
    heads = x.reshape(B, T, 2, 4).transpose(0, 2, 1, 3)
    want = reference.linear(heads, heads, heads, None, True, lambda row: np.maximum(row, 0) ** 3)
    close(layer(x, use_causal_mask=True), want.transpose(0, 2, 1, 3).reshape(B, T, 8), 1e-5)
    _, state = layer(x, state=layer.init_state(B))
    assert np.isfinite(state["s"]).all()


def test_a_feature_map_is_saved_as_itself_or_not_at_all(rng):
    x = rng.normal(size=(B, T, 8)).astype("float32")
    layer = MultiHeadAttention(8, 2, mechanism=LinearAttention(feature_map=stored))
    want, again = layer(x), MultiHeadAttention.from_config(layer.get_config())
    again(x)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x), want)
    foreign = MultiHeadAttention(8, 2, mechanism=LinearAttention(feature_map=softplus))
    with pytest.raises(ValueError, match="feature_map 'softplus' would be loaded as Keras' function of that name: reg"):
        foreign.get_config()
    # One that Keras cannot find is for whoever loads it to give.
    unknown = MultiHeadAttention(8, 2, mechanism=LinearAttention(feature_map=cubed)).get_config()
    with pytest.raises(TypeError, match="Could not locate function 'cubed'"):
        MultiHeadAttention.from_config(unknown)
    # An object that tells its options, such as a layer.
    leaky = LinearAttention(feature_map=keras.layers.ReLU(max_value=2.0))
    again = MultiHeadAttention.from_config(MultiHeadAttention(8, 2, mechanism=leaky).get_config())
    assert again.mechanism.feature_map.max_value == 2.0
    with keras.saving.custom_object_scope({"cubed": cubed}):
        assert MultiHeadAttention.from_config(unknown).mechanism.feature_map is cubed


def test_performer_redraws_its_features_on_request(rng):
    layer = MultiHeadAttention(8, 2, mechanism=PerformerAttention(num_features=6, seed=1))
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    before, features = layer(x), layer.mechanism.features.numpy()
    assert not any(w.path.endswith("features") for w in layer.trainable_weights)
    layer.mechanism.redraw(seed=2)
    assert np.abs(layer(x) - before).max() > 1e-4
    layer.mechanism.redraw(seed=1)
    np.testing.assert_array_equal(layer.mechanism.features, features)
    np.testing.assert_array_equal(layer(x), before)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
        layer.mechanism.redraw(seed=None)
