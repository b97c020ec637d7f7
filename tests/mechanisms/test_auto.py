"""mechanism="auto": which form it takes, and that all forms and paths of exact attention give the same numbers."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention import MultiHeadAttention
from keras_attention.mechanisms import AutoAttention, auto, base, names

B, T, S, H, K, D = 2, 6, 9, 4, 2, 3
WIDTH, D_MODEL = 7, 10


@pytest.fixture
def short(monkeypatch):
    """Tiles at lengths that a test can afford."""
    monkeypatch.setattr(auto, "SHORT", 2)


def new_layer(mechanism, dtype="float32", **options):
    layer = MultiHeadAttention(
        D_MODEL, H, mechanism, num_kv_heads=K, temperature=1.3, seed=5, dtype=dtype, **{"head_dim": D, **options}
    )
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(1)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    return layer


# --- the choice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes, name",
    [
        ((512, 512, 4), "softmax"),  # 4 * 4 * 4 * 512 * 512 = 2**24 bytes
        ((512, 513, 4), "blockwise"),
        ((512, 513, 3), "softmax"),
        ((512, 513), "softmax"),  # an unknown batch is one row
        ((1025,), "blockwise"),  # keys as many as queries
        ((255, 10**6, 64), "softmax"),
        ((10**6, 255, 64), "softmax"),
        ((256, 10**6), "blockwise"),
        ((None, 10**6), "softmax"),
    ],
)
def test_the_choice_follows_from_static_sizes(sizes, name):
    assert MultiHeadAttention(8, H).chosen_mechanism(*sizes) == name
    assert MultiHeadAttention(8, H, "local").chosen_mechanism(*sizes) == "local"


def test_carried_scores_are_dense(rng, short):
    layers = [new_layer(m) for m in (AutoAttention(dense_bytes=0), "softmax")]
    x = rng.normal(size=(B, T, WIDTH)).astype("float32")
    previous = rng.normal(size=(B, H, T, T)).astype("float32")
    # In a graph scores are tensors without values.
    found = [
        tf.function(lambda x, scores, layer=layer: layer(x, previous_scores=scores), autograph=False)(x, previous)
        for layer in layers
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - layers[0](x)).max() > 1e-2


def test_biases_by_distance_are_dense(rng, short):
    layers = [new_layer(m, positions="alibi") for m in (AutoAttention(dense_bytes=0), "softmax")]
    x = rng.normal(size=(B, T, WIDTH)).astype("float32")
    assert layers[0].chosen_mechanism(10**6) == "softmax"
    np.testing.assert_allclose(layers[0](x, training=True), layers[1](x, training=True), atol=1e-6)
    rotary = [new_layer(m, positions="rotary", head_dim=4) for m in (AutoAttention(dense_bytes=0), "softmax")]
    assert rotary[0].chosen_mechanism(10**6) == "blockwise"
    np.testing.assert_allclose(*(layer(x, use_causal_mask=True) for layer in rotary), atol=2e-6)


def test_an_unknown_number_of_keys_is_dense():
    assert AutoAttention().chosen(1, 1, 10**6, None) == "softmax"


def test_the_config_keeps_auto():
    layer = MultiHeadAttention(8, 2)
    assert layer.get_config()["mechanism"] == "auto" and isinstance(layer.mechanism, AutoAttention)
    assert "auto" not in names() and layer.mechanism.registered_name == "auto"
    given = MultiHeadAttention(8, 2, AutoAttention(dense_bytes=100))
    again = MultiHeadAttention.from_config(given.get_config())
    assert again.mechanism.dense_bytes == 100 and again.chosen_mechanism(256) == "blockwise"
    assert base.class_of("auto") is AutoAttention
    with pytest.raises(ValueError, match="Unknown mechanism 'aut'; known are auto, softmax"):
        MultiHeadAttention(8, 2, "aut")
    with pytest.raises(ValueError, match=r"dense_bytes must be an integer of at least 0\. Got dense_bytes=-1"):
        AutoAttention(dense_bytes=-1)


def operations(function, *specs):
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    return graph.as_graph_def()


def has_loops(graph_def):
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    return any(node.op in ("While", "StatelessWhile") for node in nodes)


def compiled_functions(graph_def):
    return [f.signature.name for f in graph_def.library.function if f.attr["_XlaMustCompile"].b]


def test_graphs_take_tiles_where_lengths_are_static(short):
    layer = new_layer(AutoAttention(dense_bytes=0))
    static, free = tf.TensorSpec([None, T, WIDTH]), tf.TensorSpec([None, None, WIDTH])
    plain = operations(lambda x: layer(x), static)
    assert has_loops(plain) and not compiled_functions(plain)
    assert not has_loops(operations(lambda x: layer(x), free))
    assert not has_loops(operations(lambda x: layer(x, return_attention_scores=True), static))
    by_bytes = new_layer("auto")
    assert not has_loops(operations(lambda x: by_bytes(x), static))
    training = operations(lambda x: layer(x, training=True), static)
    assert compiled_functions(training)
    # A trained model's graph for serving is plain again.
    assert not compiled_functions(operations(lambda x: layer(x), static))


def test_a_prefill_into_a_fixed_state_takes_tiles(rng, short):
    layer = new_layer(AutoAttention(dense_bytes=0))
    x = rng.normal(size=(B, T, WIDTH)).astype("float32")
    real = np.array([[True] * T, [True] * 4 + [False] * 2])
    whole = new_layer("softmax")(x, use_causal_mask=True, padding_mask=real)
    for length in (9, None):
        state = layer.init_state(B, length)
        if length:
            prefill = lambda x, state=state: layer(x, state=state)[0]  # noqa: E731
            assert has_loops(operations(prefill, tf.TensorSpec([B, T, WIDTH])))
        got, state = layer(x[:, :4], state=state, padding_mask=real[:, :4])
        rest, _ = layer(x[:, 4:], state=state, padding_mask=real[:, 4:])
        got = np.concatenate([got, rest], axis=1)
        np.testing.assert_allclose(got[real], whole[real], atol=2e-6)


# --- all paths agree -----------------------------------------------------------------------------------------------

FORMS = {
    "dense": "softmax",
    "tiles": "blockwise",
    "auto, dense": AutoAttention(),
    "auto, tiles": AutoAttention(dense_bytes=0),
}


def attend(layer, inputs, options, training):
    """Output and gradients to the inputs, the bias and all weights; the dropout's seed is set back first."""
    if layer._seed_generator is not None:
        layer._seed_generator.state.assign([5, 3])
    options = dict(options)
    bias = options.pop("bias")
    with tf.GradientTape() as tape:
        tape.watch([*inputs, bias])
        out = layer(*inputs, bias=bias, training=training, **options)
        out = out[0] if isinstance(out, tuple) else out
        loss = tf.reduce_sum(tf.cast(out, tf.float64) * np.cos(np.arange(B * T * D_MODEL)).reshape(B, T, D_MODEL))
    return [out, *tape.gradient(loss, [*inputs, bias, *layer.trainable_variables])]


def attend_with_scores(layer, inputs, options, training):
    return attend(layer, inputs, {**options, "return_attention_scores": True}, training)


@pytest.mark.parametrize("rate, cross", [(0.0, False), (0.4, True)], ids=["self", "cross, dropout"])
def test_all_paths_agree_in_value_and_gradient(rng, short, subtests, rate, cross):
    keys = S if cross else T
    x, memory = rng.normal(size=(B, T, WIDTH)), rng.normal(size=(B, S, WIDTH))
    mask = rng.random((B, H, T, keys)) > 0.2
    mask[0, :, 2] = False  # a row without any key
    padding = np.arange(keys) < np.array([[keys], [keys - 2]])
    bias = rng.normal(size=(1, H, T, keys))
    options = {"mask": mask, "padding_mask": padding, "use_causal_mask": not cross}

    def inputs(dtype):
        return [tf.constant(a, dtype) for a in ((memory, memory, x) if cross else (x,))]

    exact = new_layer("softmax", "float64", dropout_rate=rate)
    if not rate:
        v = memory if cross else x
        limits = reference.Limits(padding=padding, free=mask, causal=not cross)
        want = reference.multi_head_attention(exact, v, v, x, limits=limits, bias=bias)
        np.testing.assert_allclose(exact(*inputs("float64"), bias=tf.constant(bias), **options), want, atol=1e-10)
    want = attend(exact, inputs("float64"), {**options, "bias": tf.constant(bias)}, True)
    options["bias"] = tf.constant(bias, tf.float32)
    for name, mechanism in FORMS.items():
        layer = new_layer(mechanism, dropout_rate=rate)
        ways = {"eager": attend} if name == "tiles" else {"eager": attend, "scores": attend_with_scores}
        # Each layer under one compiler: all of them under all would take minutes.
        how = {"dense": True, "tiles": False, "auto, dense": False, "auto, tiles": True}[name]
        ways["XLA" if how else "graph"] = tf.function(attend, jit_compile=how, autograph=False)
        for way, run in ways.items():
            with subtests.test(name, way=way):
                got = run(layer, inputs("float32"), options, True)
                for i, (a, b) in enumerate(zip(got, want, strict=True)):
                    np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5, err_msg=f"result {i}")
        if rate:
            with subtests.test(name, way="inference"):
                got = attend(layer, inputs("float32"), options, False)[0]
                quiet = attend(exact, inputs("float64"), {**options, "bias": tf.constant(bias)}, False)[0]
                np.testing.assert_allclose(got, quiet, atol=2e-5)
                assert np.abs(got - tf.cast(want[0], tf.float32)).max() > 0.05


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_both_forms_agree_in_half_precision(rng, short, policy):
    x = rng.normal(size=(B, T, WIDTH)).astype("float32")
    dense, tiles = (new_layer(AutoAttention(dense_bytes=size), policy)(x, use_causal_mask=True) for size in (2**24, 0))
    assert dense.dtype == tiles.dtype == keras.DTypePolicy(policy).compute_dtype
    # Both sum in float32: they differ by the last rounding alone.
    np.testing.assert_allclose(tf.cast(dense, "float32"), tf.cast(tiles, "float32"), rtol=2**-7, atol=2e-2)


def test_weights_and_files_are_those_of_softmax(rng, short, tmp_path):
    x = rng.normal(size=(B, T, WIDTH)).astype("float32")
    inputs = keras.Input((T, WIDTH))
    model = keras.Model(inputs, new_layer("auto")(inputs))
    model.save_weights(tmp_path / "auto.weights.h5")
    for mechanism in FORMS.values():
        other = keras.Model(inputs, new_layer(mechanism)(inputs))
        for w in other.trainable_variables:
            w.assign(w * 0)
        other.load_weights(tmp_path / "auto.weights.h5")
        np.testing.assert_allclose(other(x), model(x), atol=2e-6)
