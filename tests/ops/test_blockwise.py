"""Attention by tiles equals a float64 loop: every option, block size, precision and way of running."""

import numpy as np
import pytest
import reference_blockwise as reference
import tensorflow as tf

from keras_attention.ops.dense import blockwise_plan, dropout_bits
from keras_attention.ops.dense.blockwise import blockwise_attention
from keras_attention.ops.dense.dot_product import scaled_dot_product_attention

B, T, S, H, K, D, E = 2, 5, 7, 4, 2, 3, 6  # all different: a swapped axis cannot pass
RATE, SEED = 0.4, [3, -5]


def inputs(rng, given=()):
    """q, k, v, the gradient that arrives, and the options named in `given`."""
    q, k, v, upstream = (
        rng.normal(size=shape).astype("float32") for shape in ((B, H, T, D), (B, K, S, D), (B, K, S, E), (B, H, T, E))
    )
    mask = rng.random((B, 1, T, S)) > 0.3
    mask[0, 0, 1] = False  # one row without any key
    bias = rng.normal(size=(1, H, T, S)).astype("float32")
    bias[0, 1, 2, :3] = -np.inf
    every = {
        "causal": {"use_causal_mask": True},
        "offset": {"use_causal_mask": True, "query_offset": np.array([1, 3])},
        "padding": {"padding_mask": np.arange(S) < np.array([[7], [4]])},
        "mask": {"mask": mask},
        "mask by head": {"mask": rng.random((B, H, 1, S)) > 0.3},
        "bias": {"bias": bias},
        "bias by key": {"bias": rng.normal(size=(B, 1, 1, S)).astype("float32")},
        "bias by query": {"bias": rng.normal(size=(1, H, T, 1)).astype("float32")},
        "scale": {"scale": 0.3},
        "dropout": {"dropout_rate": RATE, "dropout_seed": SEED},
    }
    options = {}
    for name in given:
        options |= every[name]
    return q, k, v, upstream, options


def expected(q, k, v, upstream, options):
    if "dropout_seed" in options:
        options = {**options, "keep": reference.keep_mask(SEED, *q.shape[:3], k.shape[2], RATE)}
    return reference.attention(q, k, v, upstream, **options)


def run(q, k, v, upstream, options, **how):
    """Output and gradients of `blockwise_attention` in training."""
    options = {**options, "training": True, **how}
    watched = {"q": tf.constant(q), "k": tf.constant(k), "v": tf.constant(v)}
    if "bias" in options:
        watched["bias"] = tf.constant(options.pop("bias"))
    with tf.GradientTape() as tape:
        tape.watch(watched)
        out = blockwise_attention(**watched, **options)
    return out, tape.gradient(out, watched, upstream)


def assert_close(got, want, tolerance=3e-6):
    out, gradients = got
    np.testing.assert_allclose(out, want[0], atol=tolerance)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, want[1][name], atol=2 * tolerance, err_msg=f"gradient of {name}")


ALL = ("offset", "padding", "mask", "bias", "scale", "dropout")
ALONE = [
    (),
    ("causal",),
    ("offset",),
    ("padding",),
    ("mask",),
    ("mask by head",),
    ("bias",),
    ("bias by key",),
    ("bias by query",),
    ("scale",),
    ("dropout",),
]


@pytest.mark.parametrize("given", [*ALONE, ALL], ids=" ".join)
def test_every_option_equals_reference(rng, given):
    case = inputs(rng, given)
    assert_close(run(*case, xla=False, query_block_size=2, key_block_size=3), expected(*case))


@pytest.mark.parametrize("block_size", [1, 3, 7, 64])  # less than, not dividing, equal to and above the lengths
def test_every_block_size_equals_reference(rng, block_size):
    case = inputs(rng, ALL)
    assert_close(run(*case, xla=False, block_size=block_size), expected(*case))


@pytest.mark.parametrize("given", [(), ("causal", "bias by key"), ALL], ids=" ".join)
def test_compiled_equals_reference(rng, given):
    case = inputs(rng, given)
    assert_close(run(*case, block_size=3), expected(*case))  # xla by default, because it is training


@pytest.mark.parametrize(
    "dtype, tolerance, xla",
    [("float64", 1e-12, True), ("float16", 5e-3, False), ("float16", 5e-3, True), ("bfloat16", 4e-2, True)],
)
def test_dtypes(rng, dtype, tolerance, xla):
    q, k, v, upstream, options = inputs(rng, ("causal", "padding"))
    q, k, v, upstream = (tf.cast(x, dtype) for x in (q, k, v, upstream))
    out, gradients = run(q, k, v, upstream, options, xla=xla, block_size=4)
    assert out.dtype == dtype and all(gradient.dtype == dtype for gradient in gradients.values())
    gradients = {name: tf.cast(gradient, "float64") for name, gradient in gradients.items()}
    assert_close((tf.cast(out, "float64"), gradients), expected(q, k, v, upstream, options), tolerance)


def test_half_precision_sums_in_float32(rng):
    """1,000 equal weights of values near 1: a float16 sum would stop growing at 2,048 or lose the last digits."""
    q, k = tf.zeros((1, 1, 1, 4), "float16"), tf.zeros((1, 1, 3000, 4), "float16")
    v = tf.cast(rng.uniform(0.5, 1.5, size=(1, 1, 3000, 2)), "float16")
    got = blockwise_attention(q, k, v, block_size=16)
    np.testing.assert_allclose(got[0, 0, 0], np.mean(v[0, 0].numpy().astype(float), axis=0), rtol=1e-3)


@pytest.mark.parametrize("outer, inner", [(False, False), (False, True), (True, False)], ids=["plain", "xla", "jit"])
@pytest.mark.parametrize("block_size", [8, None])
def test_unknown_sizes_with_gradient(rng, outer, inner, block_size):
    """Case 24b: also under jit_compile, where a loop of unknown length has no gradient unless it brings its own."""
    shapes = [tf.TensorSpec([None, 2, None, 4])] * 4 + [tf.TensorSpec([None, None], tf.bool)]

    @tf.function(jit_compile=outer, input_signature=shapes, autograph=False)
    def outputs(q, k, v, upstream, padding):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            out = blockwise_attention(
                q, k, v, use_causal_mask=True, padding_mask=padding, xla=inner, block_size=block_size
            )
        assert out.shape.as_list() == [None, 2, None, 4]
        return out, tape.gradient(out, [q, k, v], upstream)

    for queries, keys in ((1, 17), (20, 9)):
        q, k, v, upstream = (rng.normal(size=(3, 2, n, 4)).astype("float32") for n in (queries, keys, keys, queries))
        padding = rng.random((3, keys)) > 0.3
        out, gradients = outputs(q, k, v, upstream, padding)
        want = reference.attention(q, k, v, upstream, use_causal_mask=True, padding_mask=padding)
        assert_close((out, dict(zip("qkv", gradients))), want)


def test_unknown_lengths_compile_few_sizes():
    rooms = set()
    for length in (1, 128, 129, 1024, 1025, *range(1030, 20_000, 61)):
        room = int(blockwise_plan.plan(tf.constant(length), None, 128, True).room)
        assert length <= room < 1.25 * length + 128
        assert room % 128 == 0
        rooms.add(room)
    assert len(rooms) < 32


def test_blocks_fit_the_sizes():
    assert blockwise_plan.longest_block(1, 8, True) == 256
    assert blockwise_plan.longest_block(1, 8, False) == 512
    assert blockwise_plan.longest_block(64, 8, True) == blockwise_plan.longest_block(64, 8, False) == 128
    # Plain loops over an unknown length pad a short sequence to no long block.
    short = blockwise_plan.plan(tf.constant(20), None, 512, False)
    assert (int(short.block), int(short.room)) == (20, 20)
    empty = blockwise_plan.plan(tf.constant(0), None, 512, False)
    assert (int(empty.block), int(empty.room)) == (1, 1)


def test_static_lengths_are_cut_evenly():
    @tf.function
    def traced():
        plans = [blockwise_plan.plan(length, None, 256, True) for length in (300, 256, 40, 0)]
        assert [plan[1:] for plan in plans] == [(304, 152, False), (256, 256, True), (40, 40, True), (1, 1, False)]
        return 0

    traced()


@pytest.mark.parametrize("xla", [False, True], ids=["plain", "xla"])
def test_first_blocks_all_masked(xla):
    """Case 24a: the running maximum is still -inf after the first block."""
    q = np.array([[[[1.0, 0.0]]]], "float32")
    k = np.array([[[[5.0, 5.0], [7.0, 7.0], [0.0, 1.0], [1.0, 1.0]]]], "float32")
    got = blockwise_attention(q, k, k, np.array([[False, False, True, True]]), block_size=2, xla=xla)
    np.testing.assert_allclose(got, [[[[0.669762, 1.0]]]], atol=1e-6)
    nothing, gradients = run(q, k, k, np.ones_like(q), {"mask": np.zeros((1, 4), bool)}, block_size=2, xla=xla)
    assert not np.any(nothing) and not any(np.any(gradient) for gradient in gradients.values())


def test_more_queries_than_keys_leave_zero_rows(rng):
    q, k = (tf.constant(rng.normal(size=(1, 2, n, 4)), "float32") for n in (9, 4))
    out, gradients = run(q, k, k, tf.ones_like(q), {"use_causal_mask": True}, block_size=3, xla=False)
    assert not np.any(out[:, :, :5]) and np.all(np.any(out[:, :, 5:], axis=-1))
    assert not np.any(gradients["q"][:, :, :5]) and np.all(np.isfinite(gradients["q"]))


@pytest.mark.parametrize("queries, keys", [(0, 3), (3, 0), (1, 1)])
def test_shortest_lengths(queries, keys):
    q, k = tf.ones((2, 2, queries, 4)), tf.ones((2, 2, keys, 4))
    out, gradients = run(q, k, k, tf.ones_like(q), {}, xla=False)
    assert out.shape == q.shape
    np.testing.assert_array_equal(out, float(keys > 0) * np.ones(q.shape))
    assert gradients["k"].shape == k.shape


def test_padding_that_is_not_a_number_has_no_influence(rng):
    q, k, v, upstream, options = inputs(rng, ("padding",))
    clean = run(q, k, v, upstream, options, block_size=3)
    k[1, :, 4:] = v[1, :, 4:] = np.nan
    dirty = run(q, k, v, upstream, options, block_size=3)
    for before, after in zip(tf.nest.flatten(clean), tf.nest.flatten(dirty)):
        np.testing.assert_array_equal(before, after)


def test_the_future_does_not_matter(rng):
    q, k, v, *_ = inputs(rng)
    before = blockwise_attention(q, k, v, use_causal_mask=True, block_size=2)
    k[:, :, -2:] += 100
    v[:, :, -2:] += 100
    after = blockwise_attention(q, k, v, use_causal_mask=True, block_size=2)
    np.testing.assert_array_equal(before[:, :, :-2], after[:, :, :-2])
    assert np.abs(before[:, :, -2:] - after[:, :, -2:]).max() > 1


def test_query_positions_are_offsets_for_each_query(rng):
    q, k, v, *_ = inputs(rng)
    offset = np.array([0, 2])
    by_offset = blockwise_attention(q, k, v, use_causal_mask=True, query_offset=offset, block_size=2)
    positions = offset[:, None] + np.arange(T)
    shuffled = rng.permutation(T)
    by_position = blockwise_attention(
        q[:, :, shuffled], k, v, use_causal_mask=True, query_positions=positions[:, shuffled], block_size=2
    )
    np.testing.assert_allclose(by_position, tf.gather(by_offset, shuffled, axis=2), atol=1e-6)


def test_dropout_is_the_same_in_the_recompute(rng):
    """Case 30, closed form: with v = identity the output is the dropped weights, and linear in v."""
    q, k = tf.zeros((1, 1, 4, 8)), tf.zeros((1, 1, 16, 8))
    v = tf.eye(16)[None, None]
    with tf.GradientTape() as tape:
        tape.watch(v)
        out = blockwise_attention(q, k, v, dropout_rate=0.5, dropout_seed=[1, 2], training=True, block_size=3)
    kept = out.numpy()[0, 0] > 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(out[0, 0][kept], 2 / 16)
    gradient = tape.gradient(out, v, tf.ones_like(out)).numpy()[0, 0, :, 0]
    np.testing.assert_allclose(gradient, kept.sum(axis=0) * 2 / 16, atol=1e-6)


def test_dropout_depends_on_the_seed_only(rng):
    q, k, v, _, _ = inputs(rng)
    options = {"dropout_rate": 0.5, "xla": False}
    first = blockwise_attention(q, k, v, dropout_seed=[1, 2], block_size=2, **options)
    other_blocks = blockwise_attention(q, k, v, dropout_seed=[1, 2], block_size=5, **options)
    other_seed = blockwise_attention(q, k, v, dropout_seed=[2, 1], block_size=2, **options)
    training = blockwise_attention(q, k, v, dropout_seed=[1, 2], dropout_rate=0.5, training=True)
    np.testing.assert_allclose(first, other_blocks, atol=1e-6)
    assert np.abs(first - other_seed).max() > 0.1
    np.testing.assert_allclose(training, first, atol=1e-6)
    assert np.abs(first - blockwise_attention(q, k, v)).max() > 0.1


def test_dropout_mask_looks_random():
    heads, rows, columns, rate = 6, 200, 300, 0.25
    keys = dropout_bits.row_keys([7, 8], tf.range(heads), tf.range(rows))
    keep = dropout_bits.keep_mask(keys, tf.range(columns), rate).numpy().astype(float)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(keep.mean() - 0.75) < 4 * deviation / np.sqrt(keep.size)
    # Rows, columns and heads neither repeat nor lean: their means spread as independent draws do.
    for axes, count in (((0, 1), heads * rows), ((0, 2), heads * columns), ((1, 2), rows * columns)):
        spread = np.std(keep.mean(axis=axes)) / (deviation / np.sqrt(count))
        assert 0.5 < spread < 1.6
    centred = (keep - 0.75) / deviation
    neighbours = {
        "column": centred[:, :, 1:] * centred[:, :, :-1],
        "row": centred[:, 1:] * centred[:, :-1],
        "diagonal": centred[:, 1:, 1:] * centred[:, :-1, :-1],
        "head": centred[1:] * centred[:-1],
    }
    for name, product in neighbours.items():
        assert abs(product.mean()) < 4 / np.sqrt(product.size), name


@pytest.mark.parametrize("xla", [False, True], ids=["plain", "xla"])
def test_second_derivatives(rng, xla):
    q, k, v = (tf.constant(rng.normal(size=(1, 2, n, 4)), "float32") for n in (5, 7, 7))

    def penalty(attention, **options):
        with tf.GradientTape() as outer:
            outer.watch([q, k, v])
            with tf.GradientTape() as inner:
                inner.watch([q, k, v])
                loss = tf.reduce_sum(attention(q, k, v, use_causal_mask=True, **options) ** 2)
            square = sum(tf.reduce_sum(x**2) for x in inner.gradient(loss, [q, k, v]))
        return outer.gradient(square, [q, k, v])

    for got, want in zip(penalty(blockwise_attention, xla=xla, block_size=3), penalty(scaled_dot_product_attention)):
        np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_inside_fit(rng, jit):
    """Two calls in one model, a compiled function in a compiled or plain training step."""
    import keras

    class Attend(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, x, training=None):
            x = blockwise_attention(x * self.scale, x, x, use_causal_mask=True, training=training)
            return blockwise_attention(x, x * self.scale, x, training=training, block_size=4)

    model = keras.Sequential([Attend()])
    x = rng.normal(size=(4, 2, 6, 3)).astype("float32")
    dense = scaled_dot_product_attention
    want = dense(*[dense(x, x, x, use_causal_mask=True)] * 3)
    model.compile("sgd", "mse", jit_compile=jit)
    np.testing.assert_allclose(model.predict(x, verbose=0), want, atol=1e-6)
    losses = model.fit(x, x, batch_size=2, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_exports_hold_no_compiled_function(rng, tmp_path):
    shapes = [tf.TensorSpec([None, 2, None, 4], name=name) for name in "qkv"]

    @tf.function(input_signature=[*shapes, tf.TensorSpec([None, None], tf.bool, name="padding")], autograph=False)
    def serve(q, k, v, padding):
        return {"out": blockwise_attention(q, k, v, use_causal_mask=True, padding_mask=padding)}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=serve)
    assert b"_XlaMustCompile" not in (tmp_path / "saved" / "saved_model.pb").read_bytes()
    loaded = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]

    tf2onnx = pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = str(tmp_path / "model.onnx")
    tf2onnx.convert.from_function(serve, input_signature=serve.input_signature, opset=18, output_path=path)
    session = onnxruntime.InferenceSession(path)
    for queries, keys in ((5, 5), (9, 20), (20, 9), (1, 17)):
        q, k, v = (rng.normal(size=(3, 2, n, 4)).astype("float32") for n in (queries, keys, keys))
        feed = {"q": q, "k": k, "v": v, "padding": rng.random((3, keys)) > 0.3}
        want = reference.attention(q, k, v, use_causal_mask=True, padding_mask=feed["padding"])
        np.testing.assert_allclose(loaded(**{n: tf.constant(x) for n, x in feed.items()})["out"], want, atol=2e-6)
        np.testing.assert_allclose(session.run(None, feed)[0], want, atol=2e-6)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"q": np.zeros((2, 4, 5), "float32")}, ValueError, r"rank 4: \[B, H, T, D\]"),
        ({"k": np.zeros((2, 3, 7, 3), "float32")}, ValueError, "as many heads"),
        ({"q": np.zeros((2, 5, 5, 3), "float32")}, ValueError, "number of q's heads must be divisible by"),
        ({"q": np.zeros((3, 4, 5, 3), "float32")}, ValueError, "one batch size"),
        ({"q": np.zeros((2, 4, 5, 3), "float16")}, TypeError, "share one floating dtype"),
        ({"mask": np.ones((5, 7), int)}, TypeError, "mask must be boolean"),
        ({"mask": np.ones((2, 3, 5, 7), bool)}, ValueError, r"mask must broadcast to \[B, H, T, S\] = \[2, 4, 5, 7\]"),
        ({"padding_mask": np.ones((2, 5), bool)}, ValueError, "padding_mask must have shape"),
        ({"bias": np.ones((2, 5, 7), "float32")}, ValueError, "bias must have rank 4"),
        ({"bias": np.ones((1, 1, 7, 5), "float32")}, ValueError, "bias must broadcast to"),
        ({"bias": np.ones((5, 7), int)}, TypeError, "bias must be floating"),
        ({"query_offset": 1}, ValueError, "need use_causal_mask=True"),
        ({"use_causal_mask": True, "query_offset": np.zeros((2, 5), int)}, ValueError, "scalar or have shape"),
        ({"use_causal_mask": True, "query_positions": np.zeros(5, int)}, ValueError, "query_positions must have shape"),
        ({"use_causal_mask": True, "query_offset": 1, "query_positions": np.zeros((1, 5))}, ValueError, "not both"),
        ({"dropout_rate": 0.5}, ValueError, "needs dropout_seed"),
        ({"temperature": 0.0}, ValueError, "temperature must be a number above 0"),
        ({"dropout_rate": 1.5}, ValueError, "dropout_rate must be"),
        ({"block_size": 0}, ValueError, "block_size must be an integer"),
        ({"key_block_size": 2.5}, ValueError, "key_block_size must be an integer"),
    ],
    ids=str,
)
def test_bad_arguments(rng, change, error, message):
    q, k, v, *_ = inputs(rng)
    with pytest.raises(error, match=message):
        blockwise_attention(**{"q": q, "k": k, "v": v, **change})


def test_a_mask_of_rank_three_is_of_batch_query_and_key(rng):
    """With as many heads as rows the numbers cannot tell: the dense function read heads."""
    q, k, v = (rng.normal(size=(3, 3, n, 4)).astype("float32") for n in (5, 6, 6))
    mask = rng.random((3, 5, 6)) < 0.6
    want = scaled_dot_product_attention(q, k, v, mask[:, None])
    assert np.abs(want - scaled_dot_product_attention(q, k, v, mask[None])).max() > 0.1
    for attend in (scaled_dot_product_attention, blockwise_attention):
        np.testing.assert_allclose(attend(q, k, v, mask), want, rtol=1e-5, atol=1e-5)
