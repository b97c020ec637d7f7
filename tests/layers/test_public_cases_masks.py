"""Masks that went wrong elsewhere: small inputs of public bug reports, with the values that are right.

X is one sequence of four tokens; one head, identity projections, scale 1/sqrt(2) unless said. FULL and CAUSAL are its
attention without and with the causal mask, in float64.
"""

import itertools

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention import (
    MultiHeadAttention,
    PositionalEncoding,
    look_ahead_mask,
    mechanisms,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_attention.layers import DecoderBlock, EncoderBlock, FeedForward, Residual, SinusoidalEncoding, TokenEmbedding
from keras_attention.ops.basics.masks import MaskConventionWarning

X = np.array([[1, 0], [0, 1], [1, 1], [2, -1]], "float32")
FULL = [[1.339523, -0.118342], [0.72338, 0.642092], [1, 0.403355], [1.825937, -0.776407]]
CAUSAL = [[1, 0], [0.330238, 0.669762], [0.751745, 0.751745], [1.825937, -0.776407]]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 2e-6}


def identity(d_model=2, **kwargs):
    return MultiHeadAttention(d_model, 1, use_bias=False, kernel_initializer="identity", **kwargs)


def close(got, want, tolerance=2e-6):
    np.testing.assert_allclose(np.asarray(tf.cast(got, tf.float64)), want, rtol=tolerance, atol=tolerance)


def exact_mechanisms():
    return [name for name in mechanisms.names() if name in ("softmax", "blockwise")]


@pytest.mark.parametrize("name", exact_mechanisms())
def test_the_values_that_all_cases_share(name):
    close(identity(mechanism=name)(X[None])[0], FULL)
    close(identity(mechanism=name)(X[None], use_causal_mask=True)[0], CAUSAL)
    close(scaled_dot_product_attention(X, X, X), FULL)
    close(scaled_dot_product_attention(X, X, X, use_causal_mask=True), CAUSAL)


@pytest.mark.parametrize("dropout_rate, scores", itertools.product((0.0, 0.1), (False, True)))
def test_case_01_no_path_drops_the_causal_mask(rng, dropout_rate, scores):
    """keras#23038. All mechanisms run the same in test_every_mechanism.py."""
    x = rng.normal(size=(1, 4, 2)).astype("float32")
    moved = x.copy()
    moved[:, 3] += 100
    layer = identity(dropout_rate=dropout_rate)

    def call(x):
        out = layer(x, use_causal_mask=True, return_attention_scores=scores)
        return out[0] if scores else out

    for run in (call, tf.function(call), tf.function(call, jit_compile=True)):
        one, other = run(tf.constant(x)), run(tf.constant(moved))
        np.testing.assert_array_equal(one[:, :3], other[:, :3])
        assert np.abs(one[:, 3] - other[:, 3]).max() > 1
    with pytest.raises(ValueError, match=r"v must have shape \(batch, length, width\)"):
        layer(x[None])


@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "float64"])
def test_case_02_a_row_that_may_attend_to_nothing_is_zero(policy):
    """pytorch#160064: the same zeros, and zero gradients, on every path."""
    x = np.array([[[1, 0], [0, 1], [2, 2]]])
    mask = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]], bool)
    compute = keras.DTypePolicy(policy).compute_dtype
    for dropout_rate, scores in itertools.product((0.0, 0.1), (False, True)):
        layer = identity(dropout_rate=dropout_rate, dtype=policy)
        inputs = tf.constant(x, compute)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(inputs)
            out = layer(inputs, mask=mask[None], return_attention_scores=scores)
            out = out[0] if scores else out
            empty, rest = tf.reduce_sum(out[:, 1]), tf.reduce_sum(tf.square(tf.cast(out, tf.float32)))
        np.testing.assert_array_equal(tf.cast(out[0, 1], tf.float32), [0, 0])
        close(out[0, 0], [0.669762, 0.330238], TOLERANCE[compute])
        for gradient in tape.gradient(empty, [inputs, *layer.trainable_variables]):
            assert not np.any(tf.cast(gradient, tf.float32))
        for gradient in tape.gradient(rest, [inputs, *layer.trainable_variables]):
            assert np.isfinite(tf.cast(gradient, tf.float32)).all()


@pytest.mark.parametrize("how", ["bias", "mask", "both"])
def test_case_03_a_masked_row_leaves_the_gradient_of_the_others(how):
    """pytorch#41508. With keys and values I and scale 1 the output is softmax(x W)."""
    x, w, eye = tf.constant([[1.0, 2], [3, 4]]), tf.Variable(np.eye(2, dtype="float32")), tf.eye(2)
    options = {}
    if how != "mask":
        options["bias"] = tf.constant([[0, 0], [-np.inf, -np.inf]], tf.float32)
    if how != "bias":
        options["mask"] = np.array([[True, True], [False, False]])
    tf.debugging.enable_check_numerics()
    try:
        with tf.GradientTape() as tape:
            out = scaled_dot_product_attention(x @ w, eye, eye, scale=1.0, **options)
            loss = tf.reduce_sum(out**2)
        got = tape.gradient(loss, w)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(scaled_dot_product_attention(x[:1] @ w, eye, eye, scale=1.0) ** 2)
        want = tape.gradient(loss, w)
    finally:
        tf.debugging.disable_check_numerics()
    np.testing.assert_array_equal(out[1], [0, 0])
    assert np.abs(want).max() > 0.1
    close(got, want, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_case_04_masks_never_overflow_half_precision(dtype):
    """keras PR#17571, flax#982: -1e9 is -inf in half, and two large numbers added are -inf in any precision."""

    def weights(q, k, **options):
        q, k = tf.constant(q, dtype), tf.constant(k, dtype)
        return scaled_dot_product_attention(q, k, tf.eye(k.shape[0], dtype=dtype), scale=1.0, **options)

    tolerance = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-6}[dtype]
    keep = np.array([True, True, False])
    want = [[0.268941, 0.731059, 0]]
    blocked = np.array([0, 0, 1], "float32")
    close(weights([[1]], [[0], [1], [2]], mask=keep), want, tolerance)
    close(weights([[1]], [[0], [1], [2]], bias=np.array([0, 0, -1e9], "float32")), want, tolerance)
    close(weights([[1]], [[0], [1], [2]], bias=tf.constant([0, 0, -np.inf], dtype)), want, tolerance)
    with pytest.warns(MaskConventionWarning):
        close(weights([[1]], [[0], [1], [2]], mask=tf.constant(blocked, dtype)), want, tolerance)
    lowest = np.array([0, 0, np.finfo("float32").min], "float32")
    close(weights([[1]], [[0], [1], [2]], bias=lowest, mask=keep, use_causal_mask=True), want, tolerance)
    got = weights([[1], [1]], [[3], [5]], mask=np.array([[False, True]]), use_causal_mask=True)
    np.testing.assert_array_equal(tf.cast(got, tf.float32), [[0, 0], [0, 1]])
    close(weights([[-40]], [[1], [1], [1]], mask=keep), [[0.5, 0.5, 0]], tolerance)
    np.testing.assert_array_equal(tf.cast(weights([[-40]], [[1]], mask=np.array([False])), tf.float32), [[0]])


def test_case_04_in_the_layer_under_mixed_float16():
    layer = identity(dtype="mixed_float16")
    x = np.array([[[7, 7], [1, 0], [0, 1]]], "float32")
    got = layer(x, padding_mask=[[False, True, True]], use_causal_mask=True, bias=np.full((3, 3), -6e4, "float32"))
    close(got[0], [[0, 0], [1, 0], [0.330238, 0.669762]], 1e-2)


def test_case_05_a_mask_of_the_documents_and_a_mask_of_keras():
    """tensorflow/text PR#894: 1 = masked in one library, 1 = keep in the other."""
    blocked = 1 - np.tril(np.ones((4, 4)))
    complement = reference.softmax(*(X[None, None],) * 3, limits=reference.Limits(free=blocked[None, None] == 1))[0, 0]
    close(complement[2], [2, -1])
    layer = identity()
    with pytest.warns(MaskConventionWarning, match="nonzero = blocked"):
        close(layer(X[None], mask=blocked[None].astype("float32"))[0], CAUSAL)
    with pytest.warns(MaskConventionWarning):
        close(scaled_dot_product_attention(X, X, X, blocked), CAUSAL)
    close(layer(X[None], mask=blocked[None] == 0)[0], CAUSAL)
    close(layer(X[None], mask=look_ahead_mask(4))[0], CAUSAL)
    close(scaled_dot_product_attention(X, X, X, look_ahead_mask(4)[0, 0]), CAUSAL)
    got = layer(X[None], mask=blocked[None] == 1)[0]
    close(got, complement)
    np.testing.assert_array_equal(got[3], [0, 0])
    close(scaled_dot_product_attention(X, X, X, blocked == 1), complement)
    with pytest.raises(TypeError, match=r"write tf.cast\(mask, tf.bool\) if 1 means 'may attend'"):
        layer(X[None], mask=blocked[None].astype("int32"))


@pytest.mark.parametrize("sizes", [(2, 3, 3), (3, 3, 3), (3, 3, 4), (1, 3, 3), (2, 3, 4)], ids=str)
def test_case_07_padding_masks_whatever_sizes_coincide(rng, sizes):
    """tensorflow#49237: (B, S) was read as (T, S) wherever the numbers happened to fit."""
    B, T, S = sizes
    v, q = (rng.normal(size=(B, n, 2)).astype("float32") for n in (S, T))
    keep = np.ones((B, S), bool)
    keep[-1, -1] = False
    layer = identity()
    got, scores = layer(v, v, q, padding_mask=keep, return_attention_scores=True)
    assert not scores.numpy()[-1, :, :, -1].any() and scores.numpy()[:, :, :, :-1].all()
    for form in (keep[:, None, :], keep[:, None, None, :]):
        close(layer(v, v, q, mask=form), got)
    for b in range(B):
        real = keep[b].sum()
        close(layer(v[b : b + 1, :real], v[b : b + 1, :real], q[b : b + 1])[0], got[b])
    ids = np.where(keep, 5, 0)
    close(layer(v, v, q, mask=padding_mask(ids)), got)
    close(layer(v, v, q, padding_mask=padding_mask(ids)[:, 0, 0]), got)
    close(padding_mask(ids + 1, pad_id=1), keep[:, None, None, :])


# --- implicit masks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("ours", [True, False], ids=["TokenEmbedding", "keras.layers.Embedding"])
def test_case_09_the_implicit_mask_reaches_attention(positions, ours):
    """keras#18543, keras-hub#138: position layers and the multiplication by sqrt(d) lost it."""
    embedding = TokenEmbedding(9, 4) if ours else keras.layers.Embedding(9, 4, mask_zero=True)
    encoding = {"learned": PositionalEncoding(5, 4), "sinusoidal": SinusoidalEncoding(), "none": lambda x: x}[positions]
    attention = MultiHeadAttention(4, 2)

    def call(ids):
        return attention(encoding(embedding(ids)), return_attention_scores=True)

    ids, short = np.array([[5, 6, 0]]), np.array([[5, 6]])
    inputs = keras.Input((None,), dtype="int32")
    functional = keras.Model(inputs, call(inputs))
    for run in (call, functional, tf.function(call)):
        out, scores = run(tf.constant(ids))
        np.testing.assert_array_equal(scores[:, :, :2, 2], np.zeros((1, 2, 2)))
        close(out[:, :2], run(tf.constant(short))[0], 1e-6)
    if ours:
        scaled, plain = TokenEmbedding(9, 4, name="a"), TokenEmbedding(9, 4, scale=False, name="b")
        scaled(ids), plain(ids)
        plain.set_weights(scaled.get_weights())
        close(scaled(ids), 2 * plain(ids).numpy(), 1e-6)


def test_case_09_every_layer_hands_the_implicit_mask_on(rng):
    ids = np.array([[5, 6, 0], [4, 0, 0]])
    x = TokenEmbedding(9, 8)(ids)
    keep = ids != 0
    layers = {
        "attention": MultiHeadAttention(8, 2),
        "learned": PositionalEncoding(5, 8),
        "sinusoidal": SinusoidalEncoding(),
        "feed_forward": FeedForward(16),
        "encoder": EncoderBlock(8, 2, 16),
        "decoder": lambda x: DecoderBlock(8, 2, 16)(x, x),
        "residual": lambda x: Residual()(x, FeedForward(16)(x)),
    }
    for name, layer in layers.items():
        out = layer(x)
        assert getattr(out, "_keras_mask", None) is not None, name
        np.testing.assert_array_equal(out._keras_mask, keep, err_msg=name)
        np.testing.assert_array_equal(x._keras_mask, keep, err_msg=f"{name} changed its input's mask")


def post_norm_encoder(blocks, by_block):
    """A functional encoder: our block, or attention with Keras' own Add and LayerNormalization around it."""
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 8, mask_zero=True)(inputs)
    for _ in range(blocks):
        if by_block:
            x = EncoderBlock(8, 2, 16, norm="post")(x)
        else:
            x = keras.layers.LayerNormalization()(keras.layers.Add()([x, MultiHeadAttention(8, 2)(x)]))
            x = keras.layers.LayerNormalization()(keras.layers.Add()([x, FeedForward(16)(x)]))
    return keras.Model(inputs, x)


by_block_or_by_layers = pytest.mark.parametrize("by_block", [True, False], ids=["EncoderBlock", "layers"])
SHORT, PADDED = np.array([[3, 4, 5]]), np.array([[3, 4, 5, 0, 0, 0]])


@by_block_or_by_layers
def test_case_10_padding_changes_nothing_at_any_depth(by_block):
    """keras#20455: the first attention took the mask off its input, and all later ones saw the padding."""
    for blocks in (1, 2, 3):
        model = post_norm_encoder(blocks, by_block)
        close(model(PADDED)[:, :3], model(SHORT), 1e-6)
    close(model.predict(PADDED, verbose=0)[:, :3], model(SHORT), 1e-6)


@by_block_or_by_layers
def test_case_10_padding_changes_nothing_in_fit(by_block):
    model = post_norm_encoder(2, by_block)
    y = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    start, trained = model.get_weights(), []
    for ids in (SHORT, PADDED):
        model.set_weights(start)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(reduction="sum"), jit_compile=False)
        model.fit(ids, y[:, : ids.shape[1]], sample_weight=(ids != 0).astype("float32"), verbose=0)
        trained.append(model.get_weights())
    assert max(np.abs(a - b).max() for a, b in zip(trained[0], start)) > 1e-3
    for one, other in zip(*trained):
        close(one, other, 1e-5)


@pytest.mark.parametrize("functional", [True, False], ids=["functional", "eager"])
def test_case_10_one_encoder_output_serves_two_cross_attentions(functional):
    ids = np.array([[3, 4, 0], [5, 0, 0]])
    embedding = keras.layers.Embedding(9, 8, mask_zero=True)
    first, second = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)

    def call(ids, q):
        memory = embedding(ids)
        outputs = [layer(memory, memory, q, return_attention_scores=True) for layer in (first, second)]
        return [scores for _, scores in outputs]

    q = np.random.default_rng(0).normal(size=(2, 2, 8)).astype("float32")
    if functional:
        inputs = keras.Input((None,), dtype="int32"), keras.Input((None, 8))
        scores = keras.Model(inputs, call(*inputs))([ids, q])
    else:
        scores = call(ids, q)
    for weights in scores:
        weights = weights.numpy().transpose(0, 3, 1, 2)  # the key axis beside the batch
        assert not weights[ids == 0].any() and (weights[ids != 0] > 0).all()
