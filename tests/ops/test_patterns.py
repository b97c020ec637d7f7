"""The patterns as functions of q, k, v, and the rolling state: float64 loops, padding, gradients, XLA, ONNX."""

import math

import numpy as np
import pytest
import reference_patterns as reference
import tensorflow as tf

from keras_attention.ops.dense import dot_product, rolling_kv_cache
from keras_attention.ops.patterns import axial, block_patterns, global_tokens, random_keys, windows

B, H, D, DV = 2, 3, 4, 5
X = np.array([[1, 0], [0, 1], [1, 1], [2, -1]], np.float64)


def make(rng, length, keys=None, depths=(D, D, DV), batch=B, dtype=np.float32):
    lengths = (length, keys or length, keys or length)
    return [tf.constant(rng.normal(size=(batch, H, n, d)).astype(dtype)) for n, d in zip(lengths, depths)]


def padding(length, batch=B):
    """One row padded on both sides and in the middle where there is room, the others whole."""
    valid = np.ones((batch, length), bool)
    valid[0, [0, length // 2, length - 1]] = False
    return valid


def longformer(q, k, v, *, num_global=2, global_mask=None, max_global=None, padding_mask=None, **kwargs):
    if global_mask is None:
        global_mask = global_tokens.first_tokens(num_global, padding_mask, tf.shape(q)[2])
    max_global = num_global if max_global is None else max_global
    options = dict(global_mask=global_mask, max_global=max_global, padding_mask=padding_mask)
    return global_tokens.longformer(q, k, v, q, k, v, **options, **kwargs)


def random_attention(q, k, v, padding_mask=None, **kwargs):
    return random_keys.random_attention(q, k, v, padding_mask=padding_mask, query_padding=padding_mask, **kwargs)


def first_real(valid, count):
    return valid & (np.cumsum(valid, axis=1) <= count)


# name -> (function, options, pattern of (valid, causal))
PATTERNS = {
    "local": (
        windows.local,
        {"radius": 3},
        lambda valid, causal: local_with_padding(valid, 3, causal),
    ),
    "local_0": (windows.local, {"radius": 0}, lambda valid, causal: local_with_padding(valid, 0, causal)),
    "local_wide": (windows.local, {"radius": 19}, lambda valid, causal: local_with_padding(valid, 19, causal)),
    "longformer": (
        longformer,
        {"radius": 2},
        lambda valid, causal: reference.longformer_pattern(2, first_real(valid, 2), valid, causal),
    ),
    "block_sparse": (
        block_patterns.block_sparse,
        {"block_size": 4},
        lambda valid, causal: reference.block_sparse_pattern(4, 1, valid, causal),
    ),
    "block_diagonal": (
        block_patterns.block_sparse,
        {"block_size": 5, "neighbours": 0},
        lambda valid, causal: reference.block_sparse_pattern(5, 0, valid, causal),
    ),
    "bigbird": (
        block_patterns.bigbird,
        {"block_size": 2, "num_random_blocks": 3, "seed": 7},
        lambda valid, causal: reference.bigbird_pattern(2, 1, 1, 3, 7, H, valid, causal),
    ),
    "bigbird_only_random": (
        block_patterns.bigbird,
        {"block_size": 3, "neighbours": 0, "num_global_blocks": 0, "num_random_blocks": 2},
        lambda valid, causal: reference.bigbird_pattern(3, 0, 0, 2, 0, H, valid, causal),
    ),
    "random": (
        random_attention,
        {"num_keys": 5, "seed": 3},
        lambda valid, causal: reference.random_pattern(5, 3, H, valid, valid, causal),
    ),
}


def local_with_padding(valid, radius, causal):
    return reference.local_pattern(valid.shape[1], valid.shape[1], radius, causal) & valid[:, None, None, :]


def every(names=PATTERNS):
    return pytest.mark.parametrize("name", list(names))


@every()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 3, 16, 29])
def test_pattern_equals_its_loop(rng, name, length, causal):
    function, options, pattern = PATTERNS[name]
    q, k, v = make(rng, length)
    for valid in (np.ones((B, length), bool), padding(length)):
        mask = None if valid.all() else tf.constant(valid)
        got = function(q, k, v, padding_mask=mask, use_causal_mask=causal, **options)
        expected = reference.attention(q, k, v, pattern(valid, causal))
        np.testing.assert_allclose(got, expected, atol=2e-6)


@every()
def test_gradients_are_those_of_dense_attention_under_the_same_mask(rng, name):
    function, options, pattern = PATTERNS[name]
    length = 21
    q, k, v = make(rng, length)
    valid = padding(length)
    valid[1] = False  # nobody to attend to
    mask = tf.constant(pattern(valid, True))
    weight = tf.constant(rng.normal(size=(B, H, length, DV)).astype(np.float32))

    def gradients(attend):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            loss = tf.reduce_sum(attend() * weight)
        return tape.gradient(loss, [q, k, v])

    got = gradients(lambda: function(q, k, v, padding_mask=tf.constant(valid), use_causal_mask=True, **options))
    wanted = gradients(lambda: dot_product.scaled_dot_product_attention(q, k, v, mask))
    for a, b in zip(got, wanted):
        a = tf.convert_to_tensor(a)
        np.testing.assert_allclose(a, b, atol=5e-6)
        assert np.all(np.asarray(a)[1] == 0)


@every()
def test_padding_on_either_side_changes_nothing(rng, name):
    function, options, _ = PATTERNS[name]
    short, long = 11, 17
    q, k, v = make(rng, short)
    alone = function(q, k, v, **options)
    for front in (0, 6):
        wide = [np.asarray(rng.normal(size=(B, H, long, x.shape[-1])), np.float32) for x in (q, k, v)]
        for x, whole in zip((q, k, v), wide):
            whole[:, :, front : front + short] = x
        valid = np.zeros((B, long), bool)
        valid[:, front : front + short] = True
        got = function(*map(tf.constant, wide), padding_mask=tf.constant(valid), **options)
        np.testing.assert_allclose(got[:, :, front : front + short], alone, atol=2e-6)


@every()
def test_a_changed_future_changes_nothing_before_it(rng, name):
    function, options, _ = PATTERNS[name]
    length, cut = 23, 13
    q, k, v = make(rng, length)
    before = function(q, k, v, use_causal_mask=True, **options)
    q, k, v = (tf.concat([x[:, :, :cut], x[:, :, cut:] * 3 + 100], axis=2) for x in (q, k, v))
    after = function(q, k, v, use_causal_mask=True, **options)
    np.testing.assert_array_equal(before[:, :, :cut], after[:, :, :cut])
    assert not np.allclose(before[:, :, cut:], after[:, :, cut:])


@every(["local", "longformer", "block_sparse", "bigbird", "random"])
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_unknown_lengths_in_a_graph(rng, name, jit):
    function, options, _ = PATTERNS[name]
    specs = [tf.TensorSpec([None, H, None, d]) for d in (D, D, DV)]

    @tf.function(input_signature=[*specs, tf.TensorSpec([None, None], tf.bool)], jit_compile=jit)
    def graph(q, k, v, valid):
        with tf.GradientTape() as tape:
            tape.watch(k)
            out = function(q, k, v, padding_mask=valid, use_causal_mask=True, **options)
            loss = tf.reduce_sum(out**2)
        return out, tf.convert_to_tensor(tape.gradient(loss, k))

    for length in (19,) if jit else (2, 19):
        q, k, v = make(rng, length)
        valid = tf.constant(padding(length))
        out, gradient = graph(q, k, v, valid)
        np.testing.assert_allclose(
            out, function(q, k, v, padding_mask=valid, use_causal_mask=True, **options), atol=1e-5
        )
        assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)


# --- one pattern at a time ----------------------------------------------------------------------------------------


def weights_of(function, length, heads=1):
    """The attention weights [H, T, S] of a function of q, k and v, read off with one-hot values."""
    q = tf.constant(np.random.default_rng(1).normal(size=(1, heads, length, D)).astype(np.float32))
    v = tf.broadcast_to(tf.eye(length), [1, heads, length, length])
    return np.asarray(function(q, q, v))[0]


@pytest.mark.parametrize(("causal", "keys"), [(False, 2 * 4 + 1), (True, 4 + 1)])
def test_the_width_of_the_window_by_counting_weights(causal, keys):
    weights = weights_of(lambda q, k, v: windows.local(q, k, v, radius=4, use_causal_mask=causal), 33)[0]
    seen = (weights != 0).sum(axis=-1)
    assert np.all(seen[4:-4] == keys)
    assert seen[0] == (1 if causal else 5) and seen[-1] == 5


def heads_of(x):
    return tf.constant(np.asarray(x, np.float64)[None, None])


def test_case_17_a_causal_window_of_two_keys_is_radius_1():
    x = heads_of(X)
    expected = [[1, 0], [0.330238, 0.669762], [0.669762, 1], [1.944193, -0.888386]]
    got = windows.local(x, x, x, radius=1, use_causal_mask=True)
    np.testing.assert_allclose(got[0, 0], expected, atol=1e-6)
    full = [[1, 0], [0.330238, 0.669762], [0.751745, 0.751745], [1.825937, -0.776407]]
    np.testing.assert_allclose(windows.local(x, x, x, radius=9, use_causal_mask=True)[0, 0], full, atol=1e-6)


def test_case_17_block_diagonal_with_a_shorter_last_block():
    x = heads_of([*X, [0, 2]])
    expected = [[0.669762, 0.330238], [0.330238, 0.669762], [1.330238, 0.339523], [1.944193, -0.888386], [0, 2]]
    got = block_patterns.block_sparse(x, x, x, block_size=2, neighbours=0)
    np.testing.assert_allclose(got[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 30), (4, 30), (9, 10), (12, 5)])
def test_local_aligns_the_last_query_with_the_last_key(rng, queries, keys, causal):
    q, k, v = make(rng, queries, keys)
    expected = reference.attention(q, k, v, reference.local_pattern(queries, keys, 3, causal))
    np.testing.assert_allclose(windows.local(q, k, v, radius=3, use_causal_mask=causal), expected, atol=2e-6)


def test_local_never_makes_a_table_of_all_pairs():
    length = 2048
    specs = [tf.TensorSpec([1, 1, length, D])] * 3
    graph = tf.function(lambda q, k, v: windows.local(q, k, v, radius=16)).get_concrete_function(*specs).graph
    largest = max(math.prod(t.shape) for op in graph.get_operations() for t in op.outputs if t.shape.is_fully_defined())
    assert largest <= length * 3 * 16


@pytest.mark.parametrize("causal", [False, True])
def test_longformer_has_projections_of_its_own_for_global_tokens(rng, causal):
    length = 19
    q, k, v, q_global, k_global, v_global = make(rng, length, depths=(D, D, DV)) + make(rng, length, depths=(D, D, DV))
    valid = padding(length)
    marked = np.zeros((B, length), bool)
    marked[0, [2, 7, 9]] = True  # 9 is padding
    marked[1, [18]] = True
    is_global = marked & valid
    allowed = reference.longformer_pattern(3, is_global, valid, causal)
    expected = np.where(
        is_global[:, None, :, None],
        reference.attention(q_global, k_global, v_global, allowed),
        reference.attention(q, k, v, allowed),
    )
    got = global_tokens.longformer(
        q,
        k,
        v,
        q_global,
        k_global,
        v_global,
        radius=3,
        global_mask=tf.constant(marked),
        max_global=3,
        padding_mask=tf.constant(valid),
        use_causal_mask=causal,
    )
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_longformer_with_more_global_tokens_than_it_was_set_up_for(rng):
    q, k, v = make(rng, 9)
    marked = tf.constant([[True] * 3 + [False] * 6, [True] + [False] * 8])
    options = dict(radius=1, global_mask=marked, max_global=2)
    with pytest.raises(ValueError, match=r"at most 2 global tokens a row. Got 3: raise num_global"):
        longformer(q, k, v, **options)
    out = tf.function(lambda: longformer(q, k, v, **options))()
    assert np.all(np.isnan(out[0])) and np.all(np.isfinite(out[1]))


def test_random_keys_are_few_different_and_the_same_for_every_batch(rng):
    function = lambda q, k, v: random_keys.random_attention(q, k, v, num_keys=6, seed=11)  # noqa: E731
    weights = weights_of(function, 50, heads=H)
    assert np.all((weights != 0).sum(axis=-1) == 6)
    assert not np.array_equal(weights[0] != 0, weights[1] != 0)
    q, k, v = make(rng, 50, batch=3)
    np.testing.assert_allclose(function(q, k, v)[1:2], function(q[1:2], k[1:2], v[1:2]), atol=1e-6)
    other = random_keys.random_attention(q, k, v, num_keys=6, seed=12)
    assert not np.allclose(other, function(q, k, v))


def test_random_keys_are_all_equally_likely():
    draws = random_keys.hashed(5, tf.range(400)[:, None, None], tf.range(40)[:, None], tf.range(4))
    assert np.unique(draws).size == draws.shape.num_elements()
    choice, chosen = random_keys.one_of_each_share(draws, tf.constant([[[100]]]), 4)
    counts = np.bincount(np.ravel(choice), minlength=100)
    assert np.all(chosen) and counts.size == 100
    # 640 expected each; a standard deviation is 25.
    assert counts.min() > 520 and counts.max() < 760


def test_random_attention_across_two_sequences(rng):
    queries, keys = 7, 13
    q, k, v = make(rng, queries, keys)
    valid = padding(keys)
    pattern = reference.random_pattern(4, 0, H, np.ones((B, queries), bool), valid, False)
    got = random_keys.random_attention(q, k, v, num_keys=4, padding_mask=tf.constant(valid))
    np.testing.assert_allclose(got, reference.attention(q, k, v, pattern), atol=2e-6)
    for q, k, v in (make(rng, 7, 13), make(rng, 9, 4)):
        queries, keys = q.shape[2], k.shape[2]
        valid = padding(keys)
        pattern = reference.random_pattern(4, 0, H, np.ones((B, queries), bool), valid, True)
        got = random_keys.random_attention(q, k, v, num_keys=4, padding_mask=tf.constant(valid), use_causal_mask=True)
        np.testing.assert_allclose(got, reference.attention(q, k, v, pattern), atol=2e-6)


@every(["longformer", "block_sparse", "bigbird"])
def test_two_sequences_are_refused(rng, name):
    function, options, _ = PATTERNS[name]
    with pytest.raises(ValueError, match=rf"{name} attends inside one sequence.*Got 5 and 8; use softmax"):
        function(*make(rng, 5, 8), **options)


@pytest.mark.parametrize(("shape", "class_tokens"), [((3, 5), 0), ((3, 5), 2), ((2, 4, 3), 0), ((2, 4, 3), 1)])
def test_axial_equals_its_loop(rng, shape, class_tokens):
    length = math.prod(shape) + class_tokens
    q, k, v = make(rng, length)
    options = dict(shape=shape, num_class_tokens=class_tokens)
    everyone = np.ones((B, length), bool)
    np.testing.assert_allclose(
        axial.axial(q, k, v, **options), reference.axial(q, k, v, shape, everyone, class_tokens), atol=2e-6
    )
    valid = padding(length)
    valid[1] = False
    np.testing.assert_allclose(
        axial.axial(q, k, v, padding_mask=tf.constant(valid), **options),
        reference.axial(q, k, v, shape, valid, class_tokens),
        atol=2e-6,
    )


def test_axial_hears_from_the_whole_grid_and_is_not_softmax(rng):
    q, k, v = make(rng, 12)
    out = axial.axial(q, k, v, shape=(3, 4))
    moved = axial.axial(q, k, tf.tensor_scatter_nd_add(v, [[0, 0, 11]], [[1.0] * DV]), shape=(3, 4))
    assert np.all(moved[0, 0] != out[0, 0])
    assert np.abs(out - dot_product.scaled_dot_product_attention(q, k, v)).max() > 1e-2


def test_axial_in_a_graph_of_unknown_length_and_its_gradient(rng):
    specs = [tf.TensorSpec([None, H, None, d]) for d in (D, D, DV)]

    @tf.function(input_signature=specs, jit_compile=True)
    def graph(q, k, v):
        with tf.GradientTape() as tape:
            tape.watch(k)
            out = axial.axial(q, k, v, shape=(3, 4), num_class_tokens=1)
            loss = tf.reduce_sum(out**2)
        return out, tape.gradient(loss, k)

    q, k, v = make(rng, 13)
    out, gradient = graph(q, k, v)
    np.testing.assert_allclose(out, axial.axial(q, k, v, shape=(3, 4), num_class_tokens=1), atol=1e-5)
    step = 1e-2 * tf.constant(rng.normal(size=k.shape).astype(np.float32))
    difference = sum(sign * tf.reduce_sum(graph(q, k + sign * step, v)[0] ** 2) / 2 for sign in (1.0, -1.0))
    np.testing.assert_allclose(tf.reduce_sum(gradient * step), difference, rtol=2e-2)


def test_axial_refuses_a_sequence_that_is_not_its_grid(rng):
    with pytest.raises(ValueError, match=r"grid of 3 x 4 = 12 positions and 0 class tokens. Got a sequence of 13"):
        axial.axial(*make(rng, 13), shape=(3, 4))


# --- rolling state ------------------------------------------------------------------------------------------------


def test_case_13_a_rolling_state_of_three():
    x = heads_of(X)
    state = rolling_kv_cache.init(1, 1, 3, 2, 2, tf.float64)
    for t in range(4):
        token = x[:, :, t : t + 1]
        out, state = rolling_kv_cache.attend(token, token, token, state)
    np.testing.assert_allclose(out[0, 0, 0], [1.918168, -0.863108], atol=1e-6)
    assert state["lengths"][0] == 4


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("pieces", [[17], [1] * 17, [5, 1, 9, 2], [2, 15], [16, 1]], ids=str)
def test_pieces_of_any_size_equal_one_pass(rng, window, pieces):
    q, k, v = make(rng, 17)
    expected = reference.attention(q, k, v, reference.local_pattern(17, 17, window - 1, True))
    state = rolling_kv_cache.init(B, H, window, D, DV, tf.float32)
    rows, start = [], 0
    for piece in pieces:
        part = slice(start, start + piece)
        start += piece
        out, state = rolling_kv_cache.attend(q[:, :, part], k[:, :, part], v[:, :, part], state)
        rows.append(out)
    np.testing.assert_allclose(np.concatenate(rows, axis=2), expected, atol=2e-6)
    for name, x in (("key", k), ("value", v)):
        for position in range(17 - window, 17):
            np.testing.assert_array_equal(state[name][:, :, position % window], x[:, :, position])


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_rolling_rows_of_different_lengths_in_a_graph(rng, jit):
    window, steps = 4, 7
    q, k, v = make(rng, steps + 6)
    real = {0: [3, 4], 1: [0, 1, 2, 3, 5]}  # padded left; padded right with a gap
    valid = np.zeros((B, 6), bool)
    for b, positions in real.items():
        valid[b, positions] = True
    specs = [tf.TensorSpec([None, H, None, d]) for d in (D, D, DV)]
    shapes = rolling_kv_cache.init(B, H, window, D, DV, tf.float32)
    state_spec = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in shapes.items()}

    @tf.function(input_signature=[*specs, state_spec, tf.TensorSpec([None, None], tf.bool)], jit_compile=jit)
    def step(q, k, v, state, valid):
        return rolling_kv_cache.attend(q, k, v, state, padding_mask=valid)

    out, state = step(q[:, :, :6], k[:, :, :6], v[:, :, :6], shapes, tf.constant(valid))
    rows = [out]
    for t in range(6, 6 + steps):
        here = np.array([[True], [t != 8]])  # row 1 pauses once
        out, state = step(*(x[:, :, t : t + 1] for x in (q, k, v)), state, tf.constant(here))
        rows.append(out)
    got = np.concatenate(rows, axis=2)
    for b, positions in real.items():
        taken = [*positions, *(t for t in range(6, 6 + steps) if not (b == 1 and t == 8))]
        alone = [np.asarray(x)[b : b + 1][:, :, taken] for x in (q, k, v)]
        pattern = reference.local_pattern(len(taken), len(taken), window - 1, True)
        np.testing.assert_allclose(got[b : b + 1][:, :, taken], reference.attention(*alone, pattern), atol=2e-6)
        others = np.setdiff1d(np.arange(6 + steps), taken)
        assert np.all(got[b][:, others] == 0)
        assert state["lengths"][b] == len(taken)


# --- ONNX ---------------------------------------------------------------------------------------------------------


def run_in_onnxruntime(graph, specs, feeds):
    """Converts a function and gives onnxruntime's outputs for each of the feeds."""
    import onnxruntime
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(tf.function(graph, input_signature=specs), input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return [session.run(None, dict(zip(names, map(np.asarray, feed)))) for feed in feeds]


def test_windows_of_several_blocks_in_onnx(rng):
    """The battery converts every mechanism; its sequences fit into one block of a window."""
    specs = [
        *(tf.TensorSpec([None, H, None, D], name=name) for name in "qkv"),
        tf.TensorSpec([None, None], tf.bool, name="valid"),
    ]

    def graph(q, k, v, valid):
        return longformer(q, k, v, radius=3, padding_mask=valid, use_causal_mask=True)

    feeds = [(*make(rng, n, depths=(D, D, D)), tf.constant(padding(n))) for n in (1, 6, 35)]
    for feed, (got,) in zip(feeds, run_in_onnxruntime(graph, specs, feeds)):
        np.testing.assert_allclose(got, graph(*feed), atol=1e-5)
