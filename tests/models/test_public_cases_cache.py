"""Decoding that went wrong elsewhere: offsets, full caches, padding on the left, beams, and their graphs in ONNX.

X, identity projections and the expected values as in test_public_cases_masks.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import MultiHeadAttention, PositionalEncoding, scaled_dot_product_attention
from keras_attention.layers import SinusoidalEncoding, TokenEmbedding
from keras_attention.layers.positions.encodings import sinusoids
from keras_attention.models import Transformer

X = np.array([[1, 0], [0, 1], [1, 1], [2, -1]], "float32")
CAUSAL = [[1, 0], [0.330238, 0.669762], [0.751745, 0.751745], [1.825937, -0.776407]]
storages = pytest.mark.parametrize("max_length", [None, 4, 7], ids=["growing", "fixed", "roomy"])


def identity(d_model=2, **kwargs):
    return MultiHeadAttention(d_model, 1, use_bias=False, kernel_initializer="identity", **kwargs)


def close(got, want, tolerance=2e-6):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def decode(layer, x, plan, state, keep=None):
    parts, start = [], 0
    for size in plan:
        valid = {} if keep is None else {"padding_mask": keep[:, start : start + size]}
        out, state = layer(x[:, start : start + size], state=state, **valid)
        parts.append(out)
        start += size
    return tf.concat(parts, axis=1), state


# --- 12: offset of the causal mask ---------------------------------------------------------------------------------


def test_case_12_the_last_query_sees_the_last_key():
    """onnx#8054: aligned top-left, a new token sees the first key only."""
    layer = identity()
    close(layer(v=X[None], k=X[None], q=X[None, 2:], use_causal_mask=True)[0], CAUSAL[2:])
    close(scaled_dot_product_attention(X[2:], X, X, use_causal_mask=True), CAUSAL[2:])
    values = np.arange(10, dtype="float32").reshape(1, 5, 2)
    close(layer(v=values, k=values, q=np.zeros((1, 1, 2), "float32"), use_causal_mask=True)[0], [[4, 5]])


@storages
@pytest.mark.parametrize("plan", [[2, 1, 1], [1, 3], [3, 1], [1, 1, 1, 1], [4]], ids=str)
def test_case_12_chunks_equal_one_pass(max_length, plan):
    layer = identity()
    got, state = decode(layer, X[None], plan, layer.init_state(1, max_length))
    close(got[0], CAUSAL)
    assert state["key"].shape == (1, 1, max_length or 4, 2)


# --- 13: the end of a state of fixed size --------------------------------------------------------------------------


def test_case_13_a_full_state_raises_in_eager_code():
    """jax#21392: a write past the end was moved onto live entries."""
    layer = identity()
    _, state = decode(layer, X[None], [1, 1, 1], layer.init_state(1, 3))
    with pytest.raises(ValueError, match=r"holds 3 positions and row 0 needs 4\. Make it with a larger max_length"):
        layer(X[None, 3:], state=state)
    with pytest.raises(ValueError, match="holds 4 positions and row 0 needs 5"):
        layer(X[None, :2], state=decode(layer, X[None], [3], layer.init_state(1, 4))[1])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_case_13_a_full_row_says_so_in_a_graph_and_harms_no_other(jit_compile):
    layer = identity()
    x = np.stack([X, X[::-1]])
    keep = np.array([[True] * 3, [True, False, False]])
    _, state = layer(x[:, :3], state=layer.init_state(2, 4), padding_mask=keep)
    step = tf.function(lambda x, s, m: layer(x, state=s, padding_mask=m), jit_compile=jit_compile)
    two, both = tf.constant(x[:, 2:]), tf.constant(np.ones((2, 2), bool))
    out, after = step(two, state, both)  # row 0 needs 5 of 4 places, row 1 needs 3
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()
    np.testing.assert_array_equal(after["lengths"], [3, 3])
    np.testing.assert_array_equal(after["key"][0], state["key"][0])
    want = layer(np.concatenate([x[1:, :1], x[1:, 2:]], axis=1), use_causal_mask=True)[:, 1:]
    close(out[1:], want)
    out, after = step(two[:, :1], after, tf.constant([[True], [True]]))  # row 0 goes on where it stood
    close(out[0], layer(np.concatenate([x[:1, :3], x[:1, 2:3]], axis=1), use_causal_mask=True)[0, 3:])
    np.testing.assert_array_equal(after["lengths"], [4, 4])
    out, last = step(two[:, :1], after, tf.constant([[True], [False]]))  # row 1 is given padding: nothing to write
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()
    tf.nest.map_structure(np.testing.assert_array_equal, last, after)


def test_case_13_writes_land_at_their_length_and_nowhere_else(rng):
    """At every length, every number of new tokens and every pattern of padding, against a list per row."""
    layer = identity()
    for _ in range(8):
        capacity = 6
        rows, state = [[], [], []], layer.init_state(3, capacity)
        while True:
            size = int(rng.integers(1, 4))
            x, keep = rng.normal(size=(3, size, 2)).astype("float32"), rng.random((3, size)) < 0.7
            if any(len(row) + k.sum() > capacity for row, k in zip(rows, keep)):
                break
            _, state = layer(x, state=state, padding_mask=keep)
            for row, tokens, k in zip(rows, x, keep):
                row.extend(tokens[k])
        np.testing.assert_array_equal(state["lengths"], [len(row) for row in rows])
        for i, row in enumerate(rows):
            want = np.zeros((capacity, 2), "float32")
            want[: len(row)] = np.reshape(row, (-1, 2))
            np.testing.assert_array_equal(state["key"][i, 0], want)
            np.testing.assert_array_equal(state["value"][i, 0], want)


# --- models for the cases on whole decodings -----------------------------------------------------------------------

VOCABULARY = 13


def small_model(**kwargs):
    model = Transformer(
        VOCABULARY,
        VOCABULARY,
        **{
            "d_model": 8,
            "num_heads": 2,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "mlp_dim": 12,
            "max_length": 20,
            "dropout_rate": 0.0,
            **kwargs,
        },
    )
    model.build()
    rng = np.random.default_rng(4)
    for w in model.trainable_variables:
        w.assign(w + rng.normal(0, 0.3, w.shape))  # large enough that a wrong position changes the logits
    return model


def greedy(model, source, target, steps, max_length):
    """Greedy ids [B, steps] and the logits of every step, [B, steps, V]."""
    logits, state = model.prefill(tf.constant(target), model.init_state(tf.constant(source), max_length))
    lengths = (np.asarray(target) != 0) * np.arange(1, 1 + len(target[0]))
    last = np.take_along_axis(logits.numpy(), lengths.max(axis=1)[:, None, None] - 1, axis=1)[:, 0]
    ids, all_logits = [], []
    for _ in range(steps):
        last[:, 0] = -np.inf  # never padding
        all_logits.append(last)
        ids.append(last.argmax(-1).astype("int32"))
        logits, state = model.step(tf.constant(ids[-1]), state)
        last = logits.numpy().copy()
    return np.stack(ids, axis=1), np.stack(all_logits, axis=1)


# --- 14: padding on the left ---------------------------------------------------------------------------------------


@storages
def test_case_14_padding_on_the_left_stays_out_of_the_state(max_length):
    """transformers#10289: the row [9,9], [9,9], [1,0], [0,1] with two pads."""
    x = np.array([[[9, 9], [9, 9], [1, 0], [0, 1]]], "float32")
    keep = np.array([[False, False, True, True]])
    layer = identity()
    for plan in ([4], [3, 1], [1, 1, 1, 1], [1, 2, 1]):
        got, _ = decode(layer, x, plan, layer.init_state(1, max_length), keep)
        close(got[0, 2:], CAUSAL[:2])
        assert np.isfinite(got).all()
    close(layer(x, padding_mask=keep, use_causal_mask=True)[0, 2:], CAUSAL[:2])


@pytest.mark.parametrize(
    "positions, max_length, side",
    [("sinusoidal", None, "left"), ("sinusoidal", 12, "right"), ("learned", 12, "left"), ("learned", None, "right")],
)
def test_case_14_a_padded_batch_decodes_like_each_row_alone(positions, max_length, side):
    model = small_model(positions=positions)
    sources, prompts = [[5, 6, 7, 8], [9, 4]], [[2, 7, 3], [2]]

    def padded(rows):
        width = max(map(len, rows))
        return [[0] * (width - len(r)) + r if side == "left" else r + [0] * (width - len(r)) for r in rows]

    ids, logits = greedy(model, padded(sources), padded(prompts), 5, max_length)
    for i in range(2):
        alone_ids, alone_logits = greedy(model, [sources[i]], [prompts[i]], 5, max_length)
        np.testing.assert_array_equal(ids[i], alone_ids[0])
        close(logits[i], alone_logits[0], 1e-5)
        whole = model({"source": tf.constant([sources[i]]), "target": tf.constant([[*prompts[i], *ids[i][:-1]]])})
        close(alone_logits[0][:, 1:], whole[0, len(prompts[i]) - 1 :, 1:], 1e-5)
    both = model({"source": tf.constant(padded(sources)), "target": tf.constant(padded(prompts))})
    for i, prompt in enumerate(prompts):
        alone = model({"source": tf.constant([sources[i]]), "target": tf.constant([prompt])})
        close(both[i].numpy()[np.array(padded(prompts)[i]) != 0], alone[0], 1e-5)


def test_case_14_a_full_row_takes_padding_with_learned_positions():
    """The last position of the table is the last that is asked for."""
    model = small_model(positions="learned", max_length=4)
    source = tf.constant([[5, 6], [7, 8]])
    target = np.array([[2, 3, 4, 5], [2, 3, 6, 9]])
    _, state = model.prefill(tf.constant(target * [[1, 1, 1, 1], [1, 1, 1, 0]]), model.init_state(source, 4))
    logits, state = model.step(tf.constant([0, 9]), state)
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(state["lengths"], [4, 4])
    np.testing.assert_array_equal(state["overflow"], [0, 0])
    close(logits[1], model({"source": source, "target": tf.constant(target)})[1, -1], 1e-5)


# --- 16: beams -----------------------------------------------------------------------------------------------------


@storages
def test_case_16_states_follow_their_parents(max_length):
    """transformers#46612: a = [1,0], [2,0]; b = [0,1], [0,3]; both beams go on from b."""
    beams = np.array([[[1, 0], [2, 0]], [[0, 1], [0, 3]]], "float32")
    layer = identity()
    q = np.ones((2, 1, 1, 2), "float32")
    _, state = layer(beams, state=layer.init_state(2, max_length))

    def attend(state):
        return scaled_dot_product_attention(q, state["key"][:, :, :2], state["value"][:, :, :2])[:, 0, 0]

    close(attend(state)[0], [1.669762, 0])
    close(attend(layer.reorder_state(state, tf.constant([1, 1]))), [[0, 2.608859]] * 2)


@pytest.mark.parametrize("max_length", [None, 12], ids=["growing", "fixed"])
def test_case_16_every_part_of_a_models_state_is_reordered(max_length):
    """Beams of two sentences with sources, prompts and lengths of their own."""
    model = small_model()
    sources, prompts = [[5, 6, 7, 8], [9, 4, 0, 0], [3, 0, 0, 0]], [[2, 7, 3], [2, 0, 0], [2, 5, 0]]
    _, state = model.prefill(tf.constant(prompts), model.init_state(tf.constant(sources), max_length))
    parents, following = [2, 0, 0, 1], [[4, 5], [6, 7], [8, 9], [10, 11]]
    state = model.reorder(state, tf.constant(parents))
    assert all(x.shape[0] == 4 for x in tf.nest.flatten(state))
    got = []
    for t in range(2):
        logits, state = model.step(tf.constant([row[t] for row in following]), state)
        got.append(logits)
    for i, parent in enumerate(parents):
        source = [token for token in sources[parent] if token]
        target = [token for token in prompts[parent] if token] + following[i]
        want = model({"source": tf.constant([source]), "target": tf.constant([target])})
        close(tf.stack(got, axis=1)[i], want[0, -2:], 1e-5)


# --- 33: beyond the table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "jit"])
def test_case_33_positions_beyond_the_table(rng, jit_compile):
    """keras#9264: an error here, zeros there, the last row under XLA."""
    layer = PositionalEncoding(8, 4)
    x = rng.normal(size=(2, 10, 4)).astype("float32")
    layer(x[:, :8])

    def run(call, *args):
        return call(*args) if jit_compile is None else tf.function(call, jit_compile=jit_compile)(*args)

    with pytest.raises(ValueError, match=r"positions \(max_len=8\) must lie in 0 \.\. 7\. Got 9; use a larger max_len"):
        run(layer, tf.constant(x))
    close(run(layer, tf.constant(x[:, :8])), x[:, :8] + layer.position_emb.numpy(), 1e-6)
    close(run(lambda x: layer(x, positions=tf.constant([[7], [3]])), tf.constant(x[:, :1]))[0, 0],
          x[0, 0] + layer.position_emb.numpy()[7], 1e-6)  # fmt: skip
    for wrong in (8, -1):
        positions = np.array([[wrong], [2]], "int32")
        if jit_compile is None:
            with pytest.raises(ValueError, match=rf"must lie in 0 \.\. 7\. Got {wrong}"):
                layer(x[:, :1], positions=positions)
        else:
            got = run(lambda x, p: layer(x, positions=p), tf.constant(x[:, :1]), tf.constant(positions))
            assert np.isnan(got[0]).all()
            close(got[1], x[1, :1] + layer.position_emb.numpy()[2], 1e-6)


def test_case_33_a_length_that_only_the_graph_knows(rng):
    x = rng.normal(size=(2, 10, 4)).astype("float32")
    layers = {rule: PositionalEncoding(8, 4, beyond=rule) for rule in ("error", "clip", "interpolate")}
    got, within = {}, {}
    for rule, layer in layers.items():
        layer(x[:, :8])
        graph = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 4])])
        got[rule], within[rule] = graph(x).numpy() - x, graph(x[:, :8]).numpy() - x[:, :8]
    tables = {rule: layer.position_emb.numpy() for rule, layer in layers.items()}
    for rule in layers:
        close(within[rule], np.stack([tables[rule]] * 2), 1e-6)
    assert np.isnan(got["error"][:, 8:]).all()
    close(got["error"][0, :8], tables["error"], 1e-6)
    close(got["clip"][0], tables["clip"][[0, 1, 2, 3, 4, 5, 6, 7, 7, 7]], 1e-6)
    places = np.linspace(0, 7, 10)
    want = np.stack([np.interp(places, np.arange(8), tables["interpolate"][:, i]) for i in range(4)], axis=1)
    close(got["interpolate"][0], want, 1e-6)
    close(layers["interpolate"](x) - x, got["interpolate"], 1e-6)
    with pytest.raises(ValueError, match="beyond must be one of 'error', 'interpolate', 'clip'"):
        PositionalEncoding(8, 4, beyond="wrap")


@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "jit"])
def test_case_33_ids_outside_the_vocabulary(jit_compile):
    layer = TokenEmbedding(4, 3)
    good = layer(np.array([[1, 3]]))
    for wrong in (4, -1):
        ids = tf.constant([[1, wrong]])
        if jit_compile is None:
            with pytest.raises(ValueError, match=rf"token ids \(vocab_size=4\) must lie in 0 \.\. 3\. Got {wrong}"):
                layer(ids)
        else:
            got = tf.function(layer, jit_compile=jit_compile)(ids)
            assert np.isnan(got[0, 1]).all()
            close(got[0, 0], good[0, 0], 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_case_33_sinusoids_are_right_at_any_position(dtype):
    close(sinusoids([0, 1], 5)[1], [0.841471, 0.540302, 0.025116, 0.999685, 0.000631], 1e-6)
    layer = SinusoidalEncoding(dtype=dtype)
    x = np.zeros((1, 2, 6), "float32")
    got = tf.cast(layer(x, positions=np.array([[4097, 257]])), tf.float32)[0]
    tolerance = {"float32": 1e-5, "mixed_float16": 1e-3, "mixed_bfloat16": 8e-3}[dtype]
    assert abs(got[0, 0] - 0.355248) < tolerance
    want = [[f(p / 10000 ** (2 * i / 6)) for i in range(3) for f in (np.sin, np.cos)] for p in (4097, 257)]
    close(got, want, max(tolerance, 1e-4))
    long = tf.cast(layer(np.zeros((1, 258, 6), "float32")), tf.float32)[0, 257]
    close(long, want[1], max(tolerance, 1e-4))


# --- 44 and 46: the step in ONNX -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def to_onnx():
    """Converts a function of tensors (specs with names) that returns a dict, and returns a function of arrays."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    tf2onnx = pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")

    def convert(function, specs, opset=18):
        if not isinstance(function, tf.types.experimental.GenericFunction):
            function = tf.function(function, input_signature=specs)
        proto, _ = tf2onnx.convert.from_function(function, input_signature=specs, opset=opset)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda **feeds: dict(zip(names, session.run(names, {k: np.asarray(v) for k, v in feeds.items()})))

    return convert


def random_layer(rng, width=6):
    layer = MultiHeadAttention(8, 4, num_kv_heads=2)
    layer.build((None, None, width))
    layer.built = True
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.3, w.shape))
    return layer


def specs_of_state(state):
    """Every axis that is zero-length or a batch as unknown."""
    return {
        name: tf.TensorSpec([None, *(n or None for n in x.shape[1:])], x.dtype, name=name) for name, x in state.items()
    }


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_case_46_the_first_step_has_an_empty_past(rng, to_onnx, opset):
    """onnxruntime#4756: past [B, H, 0, D]; five single steps against one prefill, and the sizes zero and one."""
    layer = random_layer(rng)
    past = specs_of_state(layer.init_state(1))
    specs = [tf.TensorSpec([None, None, 6], tf.float32, name="x"), *past.values()]

    def step(x, *parts):
        out, state = layer(x, state=dict(zip(past, parts)))
        return {"y": out, **{f"present_{name}": value for name, value in state.items()}}

    run = to_onnx(step, specs, opset)
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    empty = {name: value.numpy() for name, value in layer.init_state(2).items()}
    assert empty["key"].shape == (2, 2, 0, 2)
    whole = run(x=x, **empty)
    close(whole["y"], layer(x, use_causal_mask=True), 1e-6)
    state, parts = empty, []
    for t in range(5):
        got = run(x=x[:, t : t + 1], **state)
        parts.append(got["y"])
        state = {name: got[f"present_{name}"] for name in state}
    close(np.concatenate(parts, axis=1), whole["y"], 1e-6)
    assert state["valid"].shape == (2, 5) and state["key"].shape == (2, 2, 5, 2)
    none = run(x=x[:0], **{name: value[:0] for name, value in state.items()})
    assert none["y"].shape == (0, 5, 8) and none["present_key"].shape == (0, 2, 10, 2)
    with pytest.raises(Exception, match="Reshape"):  # no tokens at all: refused, never a wrong answer
        run(x=x[:, :0], **state)


def test_case_44_a_fixed_step_and_its_overflow(rng, to_onnx):
    layer = random_layer(rng)
    past = specs_of_state(layer.init_state(1, 4))
    specs = [tf.TensorSpec([None, None, 6], tf.float32, name="x"), *past.values()]

    def step(x, *parts):
        out, state = layer(x, state=dict(zip(past, parts)))
        return {"y": out, **{f"present_{name}": value for name, value in state.items()}}

    run = to_onnx(step, specs)
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    state, parts = {name: value.numpy() for name, value in layer.init_state(2, 4).items()}, []
    for t in range(4):
        got = run(x=x[:, t : t + 1], **state)
        parts.append(got["y"])
        state = {name: got[f"present_{name}"] for name in state}
    close(np.concatenate(parts, axis=1), layer(x[:, :4], use_causal_mask=True), 1e-5)
    got = run(x=x[:, 4:], **state)
    assert np.isnan(got["y"]).all()
    for name, value in state.items():
        np.testing.assert_array_equal(got[f"present_{name}"], value)


def test_case_44_a_function_that_was_compiled(rng, to_onnx):
    """tf2onnx knows no compiled call inside a graph: layers must not make one, and training by XLA leaves none."""
    layer = random_layer(rng)
    model = keras.Sequential([keras.Input((None, 6)), layer])
    model.compile("sgd", "mse", jit_compile=True)
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    model.fit(x, np.zeros((2, 5, 8), "float32"), verbose=0)
    run = to_onnx(lambda x: {"y": model(x)}, [tf.TensorSpec([None, None, 6], tf.float32, name="x")])
    close(run(x=x)["y"], model(x), 1e-5)


@pytest.mark.parametrize("max_length", [None, 10], ids=["growing", "fixed"])
def test_case_44_a_while_loop_of_steps(rng, to_onnx, max_length):
    """Nine steps inside one graph, each fed with the output of the one before."""
    layer = random_layer(rng, width=8)
    start = rng.normal(size=(2, 1, 8)).astype("float32")

    def decode(x):
        def body(t, y, written, state):
            y, state = layer(y, state=state)
            return t + 1, y, tf.concat([written, y], axis=1), state

        state = layer.init_state(tf.shape(x)[0], max_length)
        shapes = {name: tf.TensorShape([None, *(n or None for n in value.shape[1:])]) for name, value in state.items()}
        loop = tf.while_loop(
            lambda t, *_: t < 9,
            body,
            (0, x, x, state),
            shape_invariants=(
                tf.TensorShape([]),
                tf.TensorShape([None, 1, 8]),
                tf.TensorShape([None, None, 8]),
                shapes,
            ),
        )
        return {"y": loop[2]}

    run = to_onnx(decode, [tf.TensorSpec([None, 1, 8], tf.float32, name="x")])
    y, state, parts = start, layer.init_state(2), [start]
    for _ in range(9):
        y, state = layer(y, state=state)
        parts.append(y)
    want = np.concatenate(parts, axis=1)
    close(run(x=start)["y"], want, 1e-5)
    close(decode(tf.constant(start))["y"], want, 1e-5)
