"""`MultiHeadAttention(positions=)` with every mechanism that declares it, against the loops of cases.py."""

import json

import cases
import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from reference_positions import bucket, slopes, turned

from keras_attention import mechanisms
from keras_attention.layers import (
    ALiBi,
    MultiHeadAttention,
    RelativePositionBias,
    RelativePositionBias2D,
    RotaryEmbedding,
)

B, T, H, K, D, WIDTH, D_MODEL = 2, 7, 4, 2, 6, 9, 10
CASES = {case.name: case for case in cases.CASES}
# These count blocks or keys along the real tokens of a row, and distances with them.
PACKED = ("bigbird", "block_sparse", "random")
SCHEMES = {
    "rotary": lambda: RotaryEmbedding(rotary_dim=4, base=50.0, layout="interleaved"),
    "alibi": lambda: "alibi",
    "relative": lambda: RelativePositionBias(H, 8, 5),
}
NEEDS = {"rotary": "rotary", "alibi": "relative", "relative": "relative"}


def supports(name):
    return mechanisms.class_of(name).supports


def pairs(*, state=False):
    """(mechanism, scheme) for all that is declared."""
    return [
        (name, scheme)
        for name in CASES
        for scheme in SCHEMES
        if getattr(supports(name), NEEDS[scheme]) and (supports(name).state or not state)
    ]


every_pair = pytest.mark.parametrize("name, scheme", pairs())
# The two kinds of path: ALiBi goes the way of the learned bias.
every_path = pytest.mark.parametrize("name, scheme", [pair for pair in pairs() if pair[1] != "alibi"])


def new_layer(name, scheme, **options):
    case = CASES[name]
    options = {"num_heads": H, "num_kv_heads": K, "head_dim": D, "d_model": D_MODEL, **options}
    mechanism = mechanisms.class_of(name)(**case.options)
    layer = MultiHeadAttention(mechanism=mechanism, positions=SCHEMES[scheme]() if scheme else None, **options)
    layer.build((None, None, WIDTH))
    layer.built = True
    rng = np.random.default_rng(5)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    return layer


def rotate_heads(heads, scheme, places):
    """[B, H, T, D], each vector turned by the position of its token."""
    out = np.array(heads, "float64")
    for b, h, t in np.ndindex(out.shape[:3]):
        out[b, h, t] = turned(out[b, h, t], places[b, t], scheme.base, scheme.rotary_dim or D, scheme.layout)
    return out


def bias_of(scheme, places):
    """[B, H, T, T] from the formula of ALiBi or of T5's buckets, entry by entry."""
    rows, length = places.shape
    out = np.zeros((rows, H, length, length))
    table = None if isinstance(scheme, ALiBi) else scheme.table.numpy()
    for b, h, t, s in np.ndindex(out.shape):
        distance = int(places[b, s] - places[b, t])
        if table is None:
            out[b, h, t, s] = -slopes(H)[h] * abs(distance)
        else:
            out[b, h, t, s] = table[bucket(distance, scheme.num_buckets, scheme.max_distance, scheme.bidirectional), h]
    return out


def expected(layer, name, x, limits, bias=None):
    """The float64 output of a layer with positions, from the loop of its mechanism."""
    case, scheme, length = CASES[name], layer.positions, x.shape[1]
    counted = np.tile(np.arange(length), (len(x), 1))
    if limits.padding is not None and (isinstance(scheme, RotaryEmbedding) or name in PACKED):
        counted = np.maximum(np.cumsum(limits.padding, axis=1) - 1, 0)
    *parts, projected = layer.mechanism.project(layer, *(tf.cast(x, layer.compute_dtype) for _ in range(3)))
    q, k, v = (reference.repeat_heads(reference.float64(part), H) for part in parts)
    projected = {key: reference.float64(value) for key, value in projected.items()}
    if not isinstance(scheme, RotaryEmbedding):
        by_distance = bias_of(scheme, counted)
        bias = by_distance if bias is None else by_distance + bias
    elif name == "linear":
        dim = scheme.rotary_dim
        projected["turn"] = lambda y, b, t: turned(y, counted[b, t], scheme.base, dim, scheme.layout)
    else:
        q, k = rotate_heads(q, scheme, counted), rotate_heads(k, scheme, counted)
        for key in {"q_global", "k_global"} & set(projected):
            projected[key] = rotate_heads(projected[key], scheme, counted)
    scale = 1 / np.sqrt(layer.head_dim)
    out = case.reference(q, k, v, limits=limits, bias=bias, scale=scale, mechanism=layer.mechanism, **projected)
    return reference.project(reference.join(out), layer.output_projection)


def inputs(rng, length=T):
    return rng.normal(size=(B, length, WIDTH)).astype("float32")


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


# --- what comes out ------------------------------------------------------------------------------------------------


@every_pair
def test_equals_the_loop(rng, name, scheme, subtests):
    layer = new_layer(name, scheme)
    x = inputs(rng)
    plain = new_layer(name, None)
    plain.set_weights([w for w in layer.get_weights() if scheme != "relative" or w.shape != (8, H)])
    keep = np.array([[True, False, True, True, False, True, True], [False, False, True, True, True, True, False]])
    for given in ((), ("causal",), ("padding",), ("padding", "causal")):
        with subtests.test(given="+".join(given) or "nothing"):
            limits = reference.Limits(keep if "padding" in given else None, causal="causal" in given)
            arguments = {"use_causal_mask": limits.causal, "padding_mask": limits.padding}
            got, without = layer(x, **arguments).numpy(), plain(x, **arguments).numpy()
            want = expected(layer, name, x, limits)
            rows = np.ones((B, T), bool) if limits.padding is None else keep
            close(got[rows], want[rows], 5e-5)
            assert np.abs(got - without)[rows].max() > 1e-3


@pytest.mark.parametrize("name", ["softmax", "relu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_bias_and_a_free_mask_come_on_top(rng, name, scheme):
    layer = new_layer(name, scheme)
    x, free = inputs(rng), rng.random((B, H, T, T)) < 0.6
    bias = rng.normal(size=(H, T, T)).astype("float32")
    bias[1, 2, :3] = -np.inf
    got = layer(x, mask=free, bias=bias)
    close(got, expected(layer, name, x, reference.Limits(free=free), bias=bias))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_not_declared_is_refused(name, scheme):
    if (name, scheme) in pairs():
        return
    shown = "RotaryEmbedding|'rotary'" if scheme == "rotary" else "'alibi'|'relative'"
    message = rf"mechanism='{name}' does not support positions=({shown}); use mechanism='softmax'"
    with pytest.raises(ValueError, match=message):
        new_layer(name, scheme)


def test_declarations_are_what_the_table_says():
    assert {name for name in CASES if supports(name).rotary is None} == {"axial", "nystrom", "linformer", "retention"}
    assert {name for name in CASES if supports(name).relative} == {
        *("softmax", "relu", "local", "longformer", "bigbird", "block_sparse", "random")
    }


@every_path
def test_moving_all_tokens_changes_nothing(rng, name, scheme):
    """Only distances count: padding before the first token moves no row."""
    layer = new_layer(name, scheme)
    x = inputs(rng)
    want = layer(x, padding_mask=np.ones((B, T), bool), use_causal_mask=True)
    moved = np.concatenate([50 * inputs(rng, 3), x, 50 * inputs(rng, 2)], axis=1)
    keep = np.array([[False] * 3 + [True] * T + [False] * 2] * B)
    close(layer(moved, padding_mask=keep, use_causal_mask=True)[:, 3:-2], want, 2e-5)


# --- gradients -----------------------------------------------------------------------------------------------------


@every_path
def test_gradients_equal_differences_of_the_loop(rng, name, scheme):
    layer = new_layer(name, scheme, dtype="float64")
    keep = np.array([[True, True, False, True, True], [False, True, True, True, True]])
    limits = reference.Limits(keep, causal=True)
    x = tf.Variable(rng.normal(size=(B, 5, WIDTH)))
    upstream = rng.normal(size=(B, 5, D_MODEL)) * keep[..., None]
    places = [x] + [w for w in layer.trainable_variables if w.shape == (8, H) or "query" in w.path]
    assert len(places) >= 3 + (scheme == "relative")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x, padding_mask=keep, use_causal_mask=True) * upstream)
    gradients = tape.gradient(loss, [w.value if hasattr(w, "path") else w for w in places])
    for place, gradient in zip(places, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient).numpy()
        direction, start, values = rng.normal(size=place.shape), np.asarray(place), []
        for sign in (1, -1):
            place.assign(start + sign * 1e-6 * direction)
            values.append((expected(layer, name, x.numpy(), limits) * upstream).sum())
        place.assign(start)
        np.testing.assert_allclose((gradient * direction).sum(), (values[0] - values[1]) / 2e-6, rtol=1e-5, atol=1e-6)


# --- decoding ------------------------------------------------------------------------------------------------------


def decode(layer, x, plan, state, keep):
    parts, start = [], 0
    for size in plan:
        piece = slice(start, start + size)
        out, state = layer(x[:, piece], state=state, padding_mask=keep[:, piece])
        parts.append(out)
        start += size
    return tf.concat(parts, axis=1), state


@pytest.mark.parametrize("name, scheme", pairs(state=True))
def test_decoding_equals_one_pass(rng, name, scheme, subtests):
    """Rows of their own lengths, padded on either side, in both storages, in pieces and steps; then reordered."""
    layer = new_layer(name, scheme)
    lengths, longest, steps = (2, 5), 6, 3
    rows = [inputs(rng, n + steps)[:1] for n in lengths]
    alone = [layer(row, use_causal_mask=True)[0] for row in rows]
    for side, max_length in (("left", None), ("right", None), ("left", 12), ("right", 12)):
        x, keep = 50 * inputs(rng, longest + steps), np.zeros((B, longest + steps), bool)
        for i, n in enumerate(lengths):
            start = longest - n if side == "left" else 0
            x[i, start : start + n], keep[i, start : start + n] = rows[i][0, :n], True
            x[i, longest:], keep[i, longest:] = rows[i][0, n:], True
        plan = [longest, 1, 1, 1] if side == "left" else [4, 3, 2]
        with subtests.test(side=side, max_length=max_length):
            got, state = decode(layer, x, plan, layer.init_state(B, max_length), keep)
            for i, row in enumerate(alone):
                close(got[i][keep[i]], row)
        beams = layer.reorder_state(state, tf.constant([1, 0, 1]))
        after = rng.normal(size=(3, 1, WIDTH)).astype("float32")
        got, _ = layer(after, state=beams)
        for i, parent in enumerate([1, 0, 1]):
            whole = np.concatenate([rows[parent], after[i : i + 1]], axis=1)
            close(got[i], layer(whole, use_causal_mask=True)[0, -1:])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_rolling_cache_counts_on_beyond_its_size(rng, scheme):
    """It equals attention to the last three tokens of one pass, whose distances and turns go on growing."""
    layer = new_layer("softmax", scheme)
    rolling = MultiHeadAttention.from_config(
        {**layer.get_config(), "mechanism": mechanisms.SoftmaxAttention("rolling")}
    )
    rolling.build((None, None, WIDTH))
    rolling.set_weights(layer.get_weights())
    x = inputs(rng, 9)
    window = np.tril(np.ones((9, 9), bool)) & ~np.tril(np.ones((9, 9), bool), -3)
    for plan in ([1] * 9, [4, 1, 3, 1]):
        got, _ = decode(rolling, x, plan, rolling.init_state(B, 3), np.ones((B, 9), bool))
        close(got, layer(x, mask=window[None]))


# --- graphs, files, exports ----------------------------------------------------------------------------------------


@every_path
def test_unknown_lengths(rng, name, scheme):
    layer = new_layer(name, scheme)
    spec = [tf.TensorSpec([None, None, WIDTH], tf.float32), tf.TensorSpec([None, None], tf.bool)]
    graph = tf.function(lambda x, keep: layer(x, padding_mask=keep, use_causal_mask=True), input_signature=spec)
    for length in (1, 7, 12):
        x, keep = inputs(rng, length), rng.random((B, length)) < 0.7
        close(graph(x, keep), layer(x, padding_mask=keep, use_causal_mask=True), 1e-5)


@pytest.mark.parametrize(
    "name, scheme",
    [
        ("softmax", "relative"),
        ("linear", "rotary"),
        pytest.param("longformer", "rotary", marks=pytest.mark.slow),
        pytest.param("bigbird", "relative", marks=pytest.mark.slow),
    ],
)
def test_compiled_gradients_equal_eager_ones(rng, name, scheme):
    layer = new_layer(name, scheme)
    x, keep = tf.constant(inputs(rng)), tf.constant(rng.random((B, T)) < 0.7)

    def gradients(x, keep):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x, padding_mask=keep, use_causal_mask=True)))
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, [x, *layer.trainable_variables])]

    for one, other in zip(tf.function(gradients, jit_compile=True)(x, keep), gradients(x, keep), strict=True):
        close(one, other, 1e-4)


@pytest.mark.parametrize("policy, tolerance", [("mixed_float16", 5e-3), ("mixed_bfloat16", 3e-2)])
@pytest.mark.parametrize("name, scheme", [("softmax", "rotary"), ("softmax", "relative"), ("local", "alibi")])
def test_precision(rng, policy, tolerance, name, scheme):
    layer = new_layer(name, scheme, dtype=policy)
    for w in layer.trainable_variables:
        w.assign(tf.cast(tf.cast(w, layer.compute_dtype), w.dtype))
    x = tf.cast(inputs(rng), layer.compute_dtype)
    got = layer(x, use_causal_mask=True)
    assert got.dtype == layer.compute_dtype and layer.positions.dtype_policy.name == policy
    want = expected(layer, name, tf.cast(x, tf.float64).numpy(), reference.Limits(causal=True))
    close(tf.cast(got, tf.float64), want, tolerance * max(1, np.abs(want).max()))


def test_configs_and_files_bring_them_back(rng, tmp_path):
    outputs, x_in = [], keras.Input((None, WIDTH))
    for name, scheme in (("softmax", "rotary"), ("local", "alibi"), ("bigbird", "relative"), ("linear", "rotary")):
        layer = new_layer(name, scheme)
        config = json.loads(json.dumps(layer.get_config()))
        again = MultiHeadAttention.from_config(config)
        assert again.get_config() == layer.get_config()
        assert again.positions.get_config()["name"] == "positions" and again.positions is not layer.positions
        outputs.append(layer(x_in, use_causal_mask=True))
    model = keras.Model(x_in, outputs)
    model.save(tmp_path / "m.keras")
    x = inputs(rng)
    for one, other in zip(keras.models.load_model(tmp_path / "m.keras")(x), model(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_onnx_equals_keras(rng):
    """One graph with a pass and a step of several layers, among them each kind of state."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    tf2onnx = pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    wanted = [("softmax", "rotary"), ("softmax", "alibi"), ("local", "relative"), ("linear", "rotary")]
    layers = [new_layer(name, scheme) for name, scheme in wanted]
    empty = [layer.init_state(B) for layer in layers]
    flat = tf.nest.flatten(empty)
    shapes = [[None] + [None if n == 0 else n for n in part.shape[1:]] for part in flat]
    specs = [tf.TensorSpec([None, None, WIDTH], tf.float32, "x"), tf.TensorSpec([None, None], tf.bool, "keep")]
    specs += [tf.TensorSpec(s, part.dtype, f"past_{i}") for i, (s, part) in enumerate(zip(shapes, flat))]

    def run(x, keep, *states):
        out, states = {}, tf.nest.pack_sequence_as(empty, states)
        for i, (layer, state) in enumerate(zip(layers, states)):
            out[f"y_{i}"] = layer(x, padding_mask=keep, use_causal_mask=True)
            step, new = layer(x[:, -1:], state=state)
            out |= {f"step_{i}": step} | {f"new_{i}_{key}": value for key, value in new.items()}
        return out

    proto, _ = tf2onnx.convert.from_function(tf.function(run, input_signature=specs), input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for length in (2, 7, 12):
        x, keep = inputs(rng, length), rng.random((B, length)) < 0.7
        states = [layer(x, state=layer.init_state(B), padding_mask=keep)[1] for layer in layers]
        arguments = [x, keep, *(part.numpy() for part in tf.nest.flatten(states))]
        feeds = {spec.name: value for spec, value in zip(specs, arguments)}
        got = dict(zip(names, session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()})))
        want = run(*map(tf.constant, arguments))
        assert set(got) == set(want)
        for key, value in want.items():
            close(got[key], value, 2e-5)


# --- grids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "relu", "blockwise"])
def test_a_grid_adds_its_bias(rng, name):
    case = CASES[name]
    options = {
        "num_heads": H,
        "head_dim": D,
        "d_model": D_MODEL,
        "mechanism": mechanisms.class_of(name)(**case.options),
    }
    layer = MultiHeadAttention(positions=RelativePositionBias2D((2, 3), H, 1), **options)
    x, extra = inputs(rng), rng.normal(size=(H, T, T)).astype("float32")
    layer(x)
    for w in layer.positions.weights:
        w.assign(rng.normal(size=w.shape))
    plain = MultiHeadAttention(**options)
    plain(x)
    tables = [w.shape for w in layer.positions.weights]
    plain.set_weights([w for w in layer.get_weights() if w.shape not in tables])
    close(layer(x), plain(x, bias=layer.positions()))
    close(layer(x, bias=extra), plain(x, bias=layer.positions() + extra))
    assert np.abs(layer(x) - plain(x)).max() > 1e-2
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) ** 2)
    assert all(np.any(tf.convert_to_tensor(g)) for g in tape.gradient(loss, layer.positions.trainable_variables))
    with pytest.raises(ValueError, match=r"RelativePositionBias2D has 7 places. Got a sequence of 8.*resized"):
        layer(inputs(rng, 8))
    with pytest.raises(ValueError, match="for a grid that is there at once, not for a decoding state"):
        layer(x, state=layer.init_state(B, 9))


def test_a_grid_is_refused_where_no_bias_is_taken():
    with pytest.raises(ValueError, match="'local' does not support positions=RelativePositionBias2D; use "):
        MultiHeadAttention(D_MODEL, 2, "local", positions=RelativePositionBias2D((2, 3), 2))


# --- bad input -----------------------------------------------------------------------------------------------------


def test_refusals_say_what_to_do(rng):
    with pytest.raises(ValueError, match=r"positions must be one of None, 'alibi', 'relative', 'rotary'. Got .*'rope'"):
        MultiHeadAttention(12, 2, positions="rope")
    with pytest.raises(ValueError, match=r"positions must be None, one of 'alibi'.*Got 3"):
        MultiHeadAttention(12, 2, positions=3)
    with pytest.raises(ValueError, match=r"ALiBi\(num_heads=3\) was given to attention with 2 heads: .*num_heads=2"):
        MultiHeadAttention(12, 2, positions=ALiBi(3))
    with pytest.raises(ValueError, match=r"a head's 3 features: rotary_dim must be even.*RotaryEmbedding.rotary_dim=2"):
        MultiHeadAttention(6, 2, positions="rotary")
    layer = MultiHeadAttention(12, 2, positions="rotary")
    x = inputs(rng)
    with pytest.raises(ValueError, match="positions='rotary' tells where queries and keys stand in one sequence"):
        layer(x, x + 1, x)
    with pytest.raises(ValueError, match="positions='rotary' tells where"):
        layer(q=x, memory=layer.project_memory(x))
