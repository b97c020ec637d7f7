"""MultiHeadAttention: how it is called, which masks it takes, and how it lives among Keras' layers."""

import re
import warnings

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention import MultiHeadAttention
from keras_attention.layers import DecoderBlock
from keras_attention.ops.basics import masks

B, T, S, H, K, D = 2, 5, 7, 4, 2, 3
V_WIDTH, K_WIDTH, Q_WIDTH, D_MODEL = 8, 6, 9, 10


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def cross_inputs(rng):
    return normal(rng, B, S, V_WIDTH), normal(rng, B, S, K_WIDTH), normal(rng, B, T, Q_WIDTH)


def built(layer, *inputs, **kwargs):
    """Calls once and gives weights and biases numbers that are all different."""
    layer(*inputs, **kwargs)
    rng = np.random.default_rng(1)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    return layer


def small(**kwargs):
    return MultiHeadAttention(D_MODEL, H, **{"head_dim": D, **kwargs})


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


# --- how it is called ----------------------------------------------------------------------------------------------


def test_call_conventions(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    want = reference.multi_head_attention(layer, x)
    for call in (lambda: layer(x), lambda: layer(q=x), lambda: layer(x, x, x), lambda: layer(v=x, k=x, q=x)):
        close(call(), want)
    other = normal(rng, B, T, V_WIDTH)
    close(layer(x, other, x + 1), reference.multi_head_attention(layer, x, other, x + 1))
    close(layer(q=x + 1, v=x, k=other), reference.multi_head_attention(layer, x, other, x + 1))


def test_widths_of_v_k_and_q_may_differ(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(num_kv_heads=K), v, k, q)
    assert layer.query_projection.kernel.shape == (Q_WIDTH, H * D)
    assert layer.key_projection.kernel.shape == (K_WIDTH, K * D)
    assert layer.value_projection.kernel.shape == (V_WIDTH, K * D)
    assert layer.output_projection.kernel.shape == (H * D, D_MODEL)
    close(layer(v, k, q), reference.multi_head_attention(layer, v, k, q))


def test_two_inputs_are_refused_with_the_order(rng):
    x = normal(rng, B, T, V_WIDTH)
    with pytest.raises(ValueError, match=r"order \(v, k, q\)\. Got v, k; Keras' order \(query, value\) would be"):
        small()(x, x)
    with pytest.raises(ValueError, match=r"Got v, q;"):
        small()(v=x, q=x)
    with pytest.raises(ValueError, match=r"Got none;"):
        small()()


def test_sizes_are_checked_where_they_are_given(rng):
    with pytest.raises(ValueError, match=r"d_model must be divisible by num_heads\. Got d_model=10, num_heads=4; use"):
        MultiHeadAttention(10, 4)
    with pytest.raises(ValueError, match=r"num_heads must be divisible by num_kv_heads\. Got num_heads=6, num_kv_head"):
        MultiHeadAttention(12, 6, num_kv_heads=4)
    for arguments, message in (
        ({"d_model": 0}, "d_model must be an integer of at least 1"),
        ({"num_heads": 2.5}, "num_heads must be an integer of at least 1"),
        ({"head_dim": -1}, "head_dim must be an integer of at least 1"),
        ({"num_kv_heads": True}, "num_kv_heads must be an integer of at least 1"),
        ({"dropout_rate": 1.0}, "dropout_rate must be a number of at least 0 and below 1"),
        ({"temperature": 0}, "temperature must be a number above 0"),
        ({"mechanism": "soft"}, "Unknown mechanism 'soft'; known are auto, softmax"),
        ({"mechanism": 3}, "mechanism must be a name, a Mechanism or its config"),
        ({"colour": "red"}, "colour"),
    ):
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(**{"d_model": 12, "num_heads": 4, **arguments})
    with pytest.raises(ValueError, match=r"v must have shape \(batch, length, width\)"):
        small()(normal(rng, B, T))


def test_bias_ranks_mean_the_same(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    bias = normal(rng, H, T, T)
    close(layer(x, bias=bias), reference.multi_head_attention(layer, x, bias=bias))
    close(layer(x, bias=bias[None]), layer(x, bias=bias), 1e-6)
    close(layer(x, bias=bias[0]), layer(x, bias=np.stack([bias[0]] * H)), 1e-6)
    with pytest.raises(ValueError, match=r"bias must have shape \[T, S\], \[H, T, S\] or \[B, H, T, S\]\. Got \(5,\)"):
        layer(x, bias=bias[0, 0])
    with pytest.raises(TypeError, match=r"bias must be floating: .* Got dtype bool"):
        layer(x, bias=bias > 0)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_huge_finite_bias_neither_overflows_nor_counts_as_infinite(rng, dtype):
    x = normal(rng, B, T, V_WIDTH)
    layer = small(dtype=dtype)
    layer(x)
    bias = np.zeros((T, T), "float32")
    bias[:, 2:] = -1e9
    close(layer(x, bias=bias), layer(x, mask=(bias == 0)[None]), 2e-3)
    everything = layer(x, bias=np.full((T, T), -1e9, "float32"))
    assert np.isfinite(everything).all() and np.abs(everything).max() > 1e-3  # as -inf it would block all: zero rows
    assert not np.any(layer(x, bias=np.full((T, T), -np.inf, "float32")))


# --- masks ---------------------------------------------------------------------------------------------------------


def test_boolean_masks_of_every_rank_mean_the_same(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(), v, k, q)
    mask = rng.random((T, S)) < 0.6
    want = reference.multi_head_attention(layer, v, k, q, limits=reference.Limits(free=mask[None, None]))
    for form in (mask, mask[None], mask[None, None], np.stack([mask] * B), np.stack([np.stack([mask] * H)] * B)):
        close(layer(v, k, q, form), want)
        close(layer(v, k, q, mask=tf.constant(form)), want)


@pytest.mark.parametrize("sizes", [(2, 3, 3), (3, 3, 3), (3, 3, 4), (1, 3, 3), (3, 2, 3)], ids=str)
def test_rank_two_masks_are_refused_only_where_they_are_ambiguous(rng, sizes):
    batch, queries, keys = sizes
    v, q = normal(rng, batch, keys, V_WIDTH), normal(rng, batch, queries, Q_WIDTH)
    layer = built(small(), v, v, q)
    mask = np.ones((queries, keys), bool)
    mask[-1, 0] = False
    if batch == queries:
        with pytest.raises(
            ValueError, match=rf"mask of shape \({queries}, {keys}\) may mean.*mask\[None\].*padding_ma"
        ):
            layer(v, v, q, mask=mask)
    else:
        close(layer(v, v, q, mask=mask), layer(v, v, q, mask=mask[None]), 1e-6)
    if batch not in (1, queries):
        with pytest.raises(ValueError, match=r"mask must broadcast to \(batch, heads, query, key\).*padding_mask="):
            layer(v, v, q, mask=np.ones((batch, keys), bool))


def test_rank_two_masks_are_refused_where_sizes_are_unknown(rng):
    layer = built(small(), normal(rng, B, T, V_WIDTH))
    graph = tf.function(lambda x, m: layer(x, mask=m))
    spec = tf.TensorSpec([None, None, V_WIDTH]), tf.TensorSpec([None, None], tf.bool)
    with pytest.raises(ValueError, match=r"batch is unknown and the query length unknown: write mask\[None\]"):
        graph.get_concrete_function(*spec)


def test_floating_masks_are_read_as_the_documents_write_them_and_warned_about(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    blocked = 1 - np.tril(np.ones((1, T, T), "float32"))
    with pytest.warns(masks.MaskConventionWarning, match=r"documents' sense: nonzero = blocked.*boolean mask"):
        got = layer(x, mask=blocked)
    close(got, layer(x, mask=blocked == 0), 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x, mask=blocked == 0)


def test_masks_of_unclear_sense_are_refused(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    with pytest.raises(
        TypeError, match=r"int32, whose sense cannot be told: write tf.cast\(mask, tf.bool\) if 1 means"
    ):
        layer(x, mask=np.ones((1, T, T), "int32"))
    with pytest.raises(TypeError, match=r"padding_mask must be boolean.*Got dtype int64"):
        layer(x, padding_mask=np.ones((B, T), "int64"))
    for value in (-1e9, -np.inf, 0.5):
        with pytest.raises(ValueError, match=r"Got the value .*: give additive numbers.* as bias= instead"):
            layer(x, mask=np.full((1, T, T), value, "float32"))
    with pytest.raises(
        ValueError, match=r"padding_mask must have shape \(batch, length\) = \(2, 5\)\. Got shape \(2, 4\)"
    ):
        layer(x, padding_mask=np.ones((B, 4), bool))
    with pytest.raises(ValueError, match=r"padding_mask must have shape .*Got shape \(2, 1, 5\)"):
        layer(x, padding_mask=np.ones((B, 1, T), bool))
    with pytest.raises(ValueError, match=r"mask must have rank 2, 3 or 4\. Got shape \(5,\)"):
        layer(x, mask=np.ones(T, bool))
    with pytest.raises(ValueError, match=r"mask must broadcast to .* = \(2, 4, 5, 5\)\. Got shape \(2, 1, 4, 5\)"):
        layer(x, mask=np.ones((B, 1, 4, T), bool))


def test_a_free_mask_must_have_one_head_or_all(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    mask = np.tril(rng.random((B, H, T, T)) < 0.6) | np.eye(T, dtype=bool)
    close(layer(x, mask=mask[:, :1]), layer(x, mask=np.repeat(mask[:, :1], H, axis=1)), 1e-6)
    assert np.abs(layer(x, mask=mask) - layer(x, mask=mask[:, :1])).max() > 1e-2
    for heads in (2, H - 1, H + 1):  # the number of key heads is no better than another
        wanted = re.escape("mask must broadcast to (batch, heads, query, key) = (2, 4, 5, 5). Got shape ")
        found = re.escape(f"({B}, {heads}, 5, 5); a padding mask (batch, key) goes to padding_mask=.")
        with pytest.raises(ValueError, match=f"{wanted}{found}"):
            layer(x, mask=np.ones((B, heads, T, T), bool))


def test_a_bias_must_fit_where_sizes_are_known(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    for shape in ((H - 1, T, T), (B + 1, 1, T, T), (T, T - 1)):
        with pytest.raises(ValueError, match=r"bias must broadcast to .* = \(2, 4, 5, 5\)\. Got shape"):
            layer(x, bias=np.zeros(shape, "float32"))
    column = normal(rng, 1, T)  # one row for all queries
    close(layer(x, bias=column), layer(x, bias=np.repeat(column, T, axis=0)), 1e-6)
    _, state = layer(x, state=layer.init_state(B))
    with pytest.raises(ValueError, match=r"bias must broadcast to .* = \(2, 4, 1, unknown\)\. Got shape \(1, 3, 1, 6"):
        layer(x[:, :1], state=state, bias=np.zeros((H - 1, 1, T + 1), "float32"))


# --- Keras' implicit masks -----------------------------------------------------------------------------------------


def masked(x, keep):
    x = tf.constant(x)
    x._keras_mask = tf.constant(keep)
    return x


def test_implicit_masks_are_honoured_handed_on_and_never_changed(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(), v, k, q)
    v_keep, k_keep = rng.random((B, S)) < 0.7, rng.random((B, S)) < 0.7
    q_keep = np.array([[True] * T, [True] * 3 + [False] * 2])
    v_keep[:, 0] = k_keep[:, 0] = True
    mv, mk, mq = masked(v, v_keep), masked(k, k_keep), masked(q, q_keep)
    before = mv._keras_mask, mk._keras_mask, mq._keras_mask
    limits = reference.Limits(padding=v_keep & k_keep, query_padding=q_keep)
    want = reference.multi_head_attention(layer, v, k, q, limits=limits)
    got = layer(mv, mk, mq)
    close(got, want)
    assert got._keras_mask is mq._keras_mask
    assert all(x._keras_mask is m for x, m in zip((mv, mk, mq), before))
    close(layer(v, k, q, v_mask=v_keep, k_mask=k_keep, q_mask=q_keep), want)
    assert getattr(layer(mv, mk, q), "_keras_mask", None) is None
    got, scores = layer(mv, mk, mq, return_attention_scores=True)
    assert got._keras_mask is mq._keras_mask
    assert not scores.numpy()[~limits.keep(B, H, T, S)].any()


def test_an_explicit_mask_wins_over_the_implicit_one(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(), v, k, q)
    keep = np.array([[True] * T, [True, False, True, False, True]])
    got = layer(v, k, masked(q, np.zeros((B, T), bool)), q_mask=keep)
    close(got, reference.multi_head_attention(layer, v, k, q, limits=reference.Limits(query_padding=keep)))


def test_self_attention_of_a_masked_input(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    keep = np.array([[True] * T, [True, True, False, False, False]])
    want = reference.multi_head_attention(layer, x, limits=reference.Limits(padding=keep, query_padding=keep))
    close(layer(masked(x, keep)), want)
    m = masked(x, keep)
    close(layer(m, m, m), want)
    free = rng.random((B, T, T)) < 0.8
    limits = reference.Limits(padding=keep, query_padding=keep, free=free[:, None], causal=True)
    close(
        layer(masked(x, keep), mask=free, use_causal_mask=True), reference.multi_head_attention(layer, x, limits=limits)
    )


def test_an_explicit_v_mask_is_about_keys_alone(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    keep = np.array([[True] * T, [True, True, False, False, False]])
    got = layer(x, v_mask=keep)
    close(got, layer(x, padding_mask=keep), 1e-6)
    assert getattr(got, "_keras_mask", None) is None
    both = layer(masked(x, keep), v_mask=np.ones((B, T), bool))  # the implicit mask still tells real queries
    limits = reference.Limits(query_padding=keep)
    close(both, reference.multi_head_attention(layer, x, limits=limits))


def test_a_floating_query_mask_goes_on_as_the_boolean_that_was_used(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    keep = np.array([[True] * T, [True, True, False, False, False]])
    with pytest.warns(masks.MaskConventionWarning, match="q_mask is floating"):
        got = layer(x, q_mask=1.0 - keep)
    close(got, layer(x, q_mask=keep), 1e-6)
    assert got._keras_mask.dtype == tf.bool
    np.testing.assert_array_equal(got._keras_mask, keep)


# --- among Keras' layers -------------------------------------------------------------------------------------------


def test_functional_sequential_and_subclass_models_agree(rng):
    x = normal(rng, B, T, V_WIDTH)
    layer = built(small(), x)
    want = reference.multi_head_attention(layer, x)
    inputs = keras.Input((None, V_WIDTH))
    functional = keras.Model(inputs, layer(inputs))
    sequential = keras.Sequential([keras.Input((None, V_WIDTH)), layer])

    class Subclass(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def call(self, x):
            return self.attention(x)

    for model in (functional, sequential, Subclass()):
        close(model(x), want)
        close(model.predict(x, verbose=0), want)
    assert functional.output_shape == (None, None, D_MODEL)


def test_time_distributed_runs_each_slice_alone(rng):
    x = normal(rng, B, 3, T, V_WIDTH)
    layer = built(small(), x[:, 0])
    got = keras.layers.TimeDistributed(layer)(x)
    close(got, np.stack([layer(x[:, i]) for i in range(3)], axis=1), 1e-6)


def test_output_spec_has_every_output_and_the_key_length(rng):
    v, k, q = (keras.KerasTensor((B, n, w)) for n, w in ((S, V_WIDTH), (S, K_WIDTH), (T, Q_WIDTH)))
    layer = small(num_kv_heads=K)
    output, scores = layer(v, k, q, return_attention_scores=True)
    assert output.shape == (B, T, D_MODEL) and scores.shape == (B, H, T, S)
    assert layer.compute_output_shape(v.shape, k.shape, q.shape) == (B, T, D_MODEL)
    assert layer.compute_output_shape((B, T, V_WIDTH)) == (B, T, D_MODEL)
    assert layer.compute_output_spec(v, k, q).shape == (B, T, D_MODEL)
    half = small(dtype="mixed_bfloat16")(keras.KerasTensor((None, None, V_WIDTH)))
    assert half.shape == (None, None, D_MODEL) and half.dtype == "bfloat16"


def test_masks_and_bias_can_be_inputs_of_a_functional_model(rng):
    inputs = {
        "x": keras.Input((T, V_WIDTH), name="x"),
        "keep": keras.Input((T,), dtype="bool", name="keep"),
        "free": keras.Input((T, T), dtype="bool", name="free"),
        "bias": keras.Input((H, T, T), name="bias"),
    }
    layer = small()
    y = layer(inputs["x"], mask=inputs["free"], padding_mask=inputs["keep"], bias=inputs["bias"], use_causal_mask=True)
    model = keras.Model(inputs, y)
    x, keep, free = normal(rng, B, T, V_WIDTH), rng.random((B, T)) < 0.7, rng.random((B, T, T)) < 0.7
    bias = normal(rng, B, H, T, T)
    limits = reference.Limits(padding=keep, free=free[:, None], causal=True)
    want = reference.multi_head_attention(layer, x, limits=limits, bias=bias)
    close(model({"x": x, "keep": keep, "free": free, "bias": bias}), want)


def test_fit_learns_and_compiles(rng):
    """A task that needs attention: every output is the input's first token."""
    x = normal(rng, 64, T, 5)
    x[:, :, 4] = 0
    x[:, 0, 4] = 3
    y = np.repeat(x[:, :1, :4], T, axis=1)
    for jit in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((T, 5)), MultiHeadAttention(4, 2, head_dim=8, dropout_rate=0.01)])
        model.compile(keras.optimizers.Adam(0.03), "mse", jit_compile=jit)
        history = model.fit(x, y, epochs=15, batch_size=32, verbose=0).history["loss"]
        assert history[-1] < 0.3 * history[0]


@pytest.mark.parametrize("use_bias", [False, True])
def test_number_of_weights(rng, use_bias):
    layer = small(num_kv_heads=K, use_bias=use_bias)
    layer(normal(rng, B, T, V_WIDTH))
    kernels = V_WIDTH * (H + 2 * K) * D + H * D * D_MODEL
    assert layer.count_params() == kernels + use_bias * ((H + 2 * K) * D + D_MODEL)


def test_kernels_have_their_own_glorot_fan():
    keras.utils.set_random_seed(1)
    layer = MultiHeadAttention(64, 8)
    layer.build((None, None, 256))
    kernels = [getattr(layer, f"{name}_projection").kernel.numpy() for name in ("query", "key", "value", "output")]
    for kernel in kernels:
        limit = np.sqrt(6 / sum(kernel.shape))
        assert 0.95 * limit < np.abs(kernel).max() <= limit
    assert len({kernel.flat[0] for kernel in kernels}) == 4


def test_one_seeded_initializer_does_not_repeat_its_numbers_elsewhere():
    layer = MultiHeadAttention(8, 2, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((None, None, 8))
    assert np.abs(layer.query_projection.kernel - layer.key_projection.kernel).max() > 0.01


# --- dropout and scores --------------------------------------------------------------------------------------------


def test_dropout_is_repeatable_by_seed_and_advances(rng):
    x = normal(rng, B, T, V_WIDTH)
    outputs = []
    for _ in range(2):
        layer = small(dropout_rate=0.5, seed=7, kernel_initializer=keras.initializers.RandomNormal(seed=2))
        outputs.append([layer(x, training=True), layer(x, training=True)])
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][1])
    assert np.abs(outputs[0][0] - outputs[0][1]).max() > 1e-3


def test_dropout_keeps_the_mean_of_the_weights(rng):
    x = normal(rng, 64, T, V_WIDTH)
    layer = small(dropout_rate=0.25, seed=1)
    _, quiet = layer(x, return_attention_scores=True)
    _, scores = layer(x, return_attention_scores=True, training=True)
    scores = scores.numpy()
    assert 0.22 < (scores == 0).mean() < 0.28
    kept = scores != 0
    close(scores[kept], (quiet.numpy() / 0.75)[kept], 1e-5)


def test_predict_twice_is_equal_and_training_differs(rng):
    inputs = keras.Input((T, V_WIDTH))
    layer = small(dropout_rate=0.5)
    model = keras.Model(inputs, layer(inputs))
    x = normal(rng, B, T, V_WIDTH)
    np.testing.assert_array_equal(model.predict(x, verbose=0), model.predict(x, verbose=0))
    assert np.abs(model(x, training=True) - model(x)).max() > 1e-3


def test_temperature_flattens(rng):
    x = normal(rng, B, T, V_WIDTH)
    sharp, flat = small(temperature=0.5), small(temperature=4.0)
    scores = []
    for layer in (sharp, flat):
        built(layer, x)
        scores.append(layer(x, return_attention_scores=True)[1].numpy())
    entropies = [-(s * np.log(s + 1e-30)).sum(-1).mean() for s in scores]
    assert entropies[0] < entropies[1] < np.log(T) + 1e-6


# --- Keras' own layer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_from_keras_gives_the_same_numbers(rng, use_bias, dtype):
    v, k, q = cross_inputs(rng)
    theirs = keras.layers.MultiHeadAttention(H, D, use_bias=use_bias, output_shape=D_MODEL, dropout=0.1, dtype=dtype)
    theirs(query=q, value=v, key=k)
    for w in theirs.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    ours = MultiHeadAttention.from_keras(theirs)
    keep = rng.random((B, T, S)) < 0.7
    keep[..., 0] = True
    tolerance = 1e-5 if dtype == "float32" else 5e-2
    got, want = ours(v=v, k=k, q=q, mask=keep), theirs(query=q, value=v, key=k, attention_mask=keep)
    assert got.dtype == want.dtype
    close(tf.cast(got, tf.float32), tf.cast(want, tf.float32), tolerance)
    assert ours.dropout_rate == 0.1 and ours.use_bias == use_bias and ours.dtype_policy.name == dtype
    before = ours(v=v, k=k, q=q)
    theirs.trainable_variables[0].assign(0 * theirs.trainable_variables[0])
    np.testing.assert_array_equal(ours(v=v, k=k, q=q), before)


def test_from_keras_takes_a_name_and_keeps_the_default_output_width(rng):
    x = normal(rng, B, T, V_WIDTH)
    theirs = keras.layers.MultiHeadAttention(H, D, kernel_initializer="he_normal", bias_initializer="ones", seed=5)
    theirs(x, x)
    ours = MultiHeadAttention.from_keras(theirs, name="mine", mechanism="softmax")
    assert ours.seed == 5 and isinstance(ours.kernel_initializer, keras.initializers.HeNormal)
    assert isinstance(ours.bias_initializer, keras.initializers.Ones)
    assert ours.name == "mine" and ours.d_model == V_WIDTH and ours.get_config()["mechanism"] != "auto"
    close(ours(x, use_causal_mask=True), theirs(x, x, use_causal_mask=True), 1e-5)


def test_from_keras_refuses_what_it_cannot_take(rng):
    x = normal(rng, B, T, V_WIDTH)
    with pytest.raises(ValueError, match="has no weights yet: call it once before from_keras"):
        MultiHeadAttention.from_keras(keras.layers.MultiHeadAttention(H, D))
    wide = keras.layers.MultiHeadAttention(H, D, value_dim=D + 1)
    wide(x, x)
    with pytest.raises(ValueError, match=r"value_dim equal to key_dim\. Got key_dim=3, value_dim=4"):
        MultiHeadAttention.from_keras(wide)
    axes = keras.layers.MultiHeadAttention(H, D, attention_axes=(2,))
    axes(normal(rng, B, 3, T, V_WIDTH), normal(rng, B, 3, T, V_WIDTH))
    with pytest.raises(ValueError, match=r"over one axis \(1,\)\. Got attention_axes=\(2,\)"):
        MultiHeadAttention.from_keras(axes)
    for options, message in (
        ({"use_gate": True}, r"cannot carry over use_gate=True: there is no such option here"),
        ({"sliding_window": 2}, r"cannot carry over sliding_window=2"),
        ({"kernel_regularizer": "l2"}, r"cannot carry over kernel_regularizer="),
        ({"output_shape": (2, 3)}, r"one axis of output features\. Got output_shape=\(2, 3\)"),
    ):
        other = keras.layers.MultiHeadAttention(H, D, **options)
        other(x, x)
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention.from_keras(other)
    with pytest.raises(TypeError, match=r"keras.layers.MultiHeadAttention.* Got Dense"):
        MultiHeadAttention.from_keras(keras.layers.Dense(3))
    theirs = keras.layers.MultiHeadAttention(H, D)
    theirs(x, x)
    with pytest.raises(
        ValueError, match=r"mechanism='lsh' does not support weights of a key projection.*use mechanism="
    ):
        MultiHeadAttention.from_keras(theirs, mechanism="lsh")
    assert MultiHeadAttention.from_keras(theirs, mechanism="longformer").built


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["lsh", "local", "nystrom"])
def test_memory_is_refused_where_there_is_no_other_sequence(rng, mechanism):
    layer = MultiHeadAttention(8, 2, mechanism)
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    layer(x)
    with pytest.raises(
        ValueError, match=rf"mechanism='{mechanism}' does not support keys of another.*use mechanism='s"
    ):
        layer.project_memory(x)


def test_projected_memory_equals_cross_attention(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(num_kv_heads=K), v, k, q)
    keep = rng.random((B, S)) < 0.7
    keep[1] = False
    memory = layer.project_memory(v, k, padding_mask=keep)
    assert {name: (tuple(x.shape), x.dtype.name) for name, x in memory.items()} == {
        "key": ((B, K, S, D), "float32"),
        "value": ((B, K, S, D), "float32"),
        "valid": ((B, S), "int32"),
    }
    close(layer(q=q, memory=memory), layer(v, k, q, padding_mask=keep), 1e-6)
    close(layer(q, memory=memory), layer(v, k, q, padding_mask=keep), 1e-6)
    close(layer(q=q, memory=layer.project_memory(v, k)), layer(v, k, q), 1e-6)
    further = rng.random((B, S)) < 0.7
    close(layer(q=q, memory=memory, padding_mask=further), layer(v, k, q, padding_mask=keep & further), 1e-6)


def test_projected_memory_keeps_implicit_masks(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(), v, k, q)
    v_keep, k_keep, further = (rng.random((B, S)) < 0.8 for _ in range(3))
    v_keep[:, 0] = k_keep[:, 0] = further[:, 0] = True
    mv, mk = masked(v, v_keep), masked(k, k_keep)
    memory = layer.project_memory(mv, mk)
    np.testing.assert_array_equal(memory["valid"], v_keep & k_keep)
    close(layer(q=q, memory=memory), layer(mv, mk, q), 1e-6)
    np.testing.assert_array_equal(
        layer.project_memory(mv, mk, padding_mask=further)["valid"], v_keep & k_keep & further
    )


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_decoder_blocks_memory_keeps_implicit_masks(rng, dtype):
    keep, further = rng.random((B, S)) < 0.8, rng.random((B, S)) < 0.8
    keep[:, 0] = further[:, 0] = True
    encoded, x = masked(normal(rng, B, S, 8), keep), normal(rng, B, T, 8)
    block = DecoderBlock(8, 2, 16, dtype=dtype)
    for mask in (None, further):
        want = block(x, encoded, memory_mask=mask)
        got = block(x, block.project_memory(encoded, mask))
        close(tf.cast(got, tf.float32), tf.cast(want, tf.float32), 1e-6)


def test_masks_of_keys_are_refused_beside_a_memory(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(), v, k, q)
    memory = layer.project_memory(v, k)
    keep, q_keep = np.ones((B, S), bool), np.array([[True] * T, [True] * 3 + [False] * 2])
    for given, names in (({"k_mask": keep}, "k_mask="), ({"k_mask": keep, "v_mask": keep}, "k_mask= and v_mask=")):
        with pytest.raises(
            ValueError, match=rf"^{names} cannot be given with memory=.*use padding_mask= of project_memory"
        ):
            layer(q=q, memory=memory, **given)
    got = layer(q=masked(q, q_keep), memory=memory)  # the queries' implicit mask is no mask of keys
    close(got, layer(v, k, q, q_mask=q_keep), 1e-6)
    close(layer(q=q, memory=memory, q_mask=q_keep), got, 1e-6)


def test_memory_and_state_are_not_mixed_with_other_inputs(rng):
    v, k, q = cross_inputs(rng)
    layer = built(small(), v, k, q)
    memory = layer.project_memory(v, k)
    with pytest.raises(ValueError, match=r"With memory= give the queries alone, as q=\. Got v, k, q"):
        layer(v, k, q, memory=memory)
    with pytest.raises(ValueError, match="state= is for self-attention"):
        layer(v, k, q, state=layer.init_state(B))
    with pytest.raises(ValueError, match="memory= and state= cannot be given together"):
        layer(q, memory=memory, state=layer.init_state(B))
    with pytest.raises(ValueError, match="max_length must be an integer of at least 1"):
        layer.init_state(B, max_length=0)
    with pytest.raises(ValueError, match="Layer 'new' has no weights yet: call or build it before project_memory"):
        small(name="new").project_memory(v)
