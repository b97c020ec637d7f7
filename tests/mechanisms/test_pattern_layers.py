"""The pattern mechanisms inside `MultiHeadAttention`: rolling states, global tokens, and options that cannot be."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import (
    AxialAttention,
    BigBirdAttention,
    BlockSparseAttention,
    LocalAttention,
    LongformerAttention,
    RandomAttention,
    SoftmaxAttention,
)

B, WIDTH = 2, 12


def layer_of(mechanism, **options):
    layer = MultiHeadAttention(d_model=WIDTH, num_heads=4, mechanism=mechanism, **options)
    layer.build((None, None, WIDTH))
    layer.built = True
    return layer


def tokens(rng, length, batch=B):
    return rng.normal(size=(batch, length, WIDTH)).astype("float32")


def decode(layer, x, state, step=None):
    step = step or (lambda x, state: layer(x, state=state))
    rows = []
    for t in range(x.shape[1]):
        out, state = step(tf.constant(x[:, t : t + 1]), state)
        rows.append(out)
    return np.concatenate(rows, axis=1), state


# --- rolling states ------------------------------------------------------------------------------------------------


def test_case_13_in_the_layer():
    x = np.array([[[1, 0], [0, 1], [1, 1], [2, -1]]], "float32")
    layer = MultiHeadAttention(2, 1, mechanism=SoftmaxAttention(cache="rolling"), use_bias=False)
    layer(x)
    layer.set_weights([np.eye(2)] * 4)
    got, _ = decode(layer, x, layer.init_state(1, max_length=3))
    np.testing.assert_allclose(got[0, 3], [1.918168, -0.863108], atol=1e-6)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "xla"])
def test_a_rolling_softmax_state_is_a_causal_window_of_max_length_keys(rng, kv_heads, jit):
    rolling = layer_of(SoftmaxAttention(cache="rolling"), num_kv_heads=kv_heads)
    window = layer_of(LocalAttention(radius=4), num_kv_heads=kv_heads)
    window.set_weights(rolling.get_weights())
    x = tokens(rng, 13)
    want = window(x, use_causal_mask=True)
    step = tf.function(lambda x, state: rolling(x, state=state), jit_compile=True) if jit else None
    got, state = decode(rolling, x, rolling.init_state(B, max_length=5), step)
    np.testing.assert_allclose(got, want, atol=2e-6)
    assert state["key"].shape == (B, kv_heads, 5, 3) and list(state["lengths"]) == [13, 13]
    assert rolling.mechanism.capacity(state) is None
    # Up to max_length it is what softmax gives in one pass.
    np.testing.assert_allclose(got[:, :5], rolling(x[:, :5], use_causal_mask=True), atol=2e-6)


def test_what_a_rolling_softmax_state_cannot_honour(rng):
    layer = layer_of(SoftmaxAttention(cache="rolling"))
    x = tokens(rng, 3)
    with pytest.raises(ValueError, match=r"cache='rolling' keeps a fixed number of positions: give max_length="):
        layer.init_state(B)
    state = layer.init_state(B, max_length=4)
    for request, arguments in (
        ("a free mask", {"mask": np.ones((B, 1, 3, 4), bool)}),
        ("an additive bias", {"bias": np.zeros((3, 4), "float32")}),
        ("return_attention_scores=True", {"return_attention_scores": True}),
    ):
        match = rf"mechanism='softmax' does not support {request}.* with cache='rolling'; use cache='full'"
        with pytest.raises(ValueError, match=match):
            layer(x, state=state, **arguments)
    with pytest.raises(ValueError, match=r"cache must be one of 'full', 'rolling'. Got cache='sliding'"):
        SoftmaxAttention(cache="sliding")


def test_a_local_state_has_one_size_and_no_end(rng):
    layer = layer_of(LocalAttention(radius=3), dtype="mixed_float16")
    x = tokens(rng, 30)
    state = layer.init_state(B, max_length=8)
    got, after = decode(layer, x, state)
    assert got.dtype == np.float16 and after["key"].dtype == "float16"
    assert {name: t.shape for name, t in after.items()} == {name: t.shape for name, t in state.items()}
    assert layer.mechanism.capacity(after) is None
    np.testing.assert_allclose(got, layer(x, use_causal_mask=True), atol=2e-3)


# --- longformer's global tokens --------------------------------------------------------------------------------------


def test_global_tokens_are_marked_in_the_call(rng):
    layer = layer_of(LongformerAttention(radius=1, num_global=2))
    x = tokens(rng, 11)
    marks = np.zeros((B, 11), bool)
    marks[:, :2] = True
    np.testing.assert_array_equal(layer(x, global_mask=marks), layer(x))
    marks[:, :2], marks[:, 7] = False, True
    got = layer(x, global_mask=marks)
    moved = x.copy()
    moved[:, 7] += 1
    # Token 7 is heard by all, token 4 by its neighbours and token 7.
    assert np.all(np.any(layer(moved, global_mask=marks) != got, axis=-1))
    moved = x.copy()
    moved[:, 4] += 1
    changed = np.any(layer(moved, global_mask=marks) != got, axis=-1)
    assert np.array_equal(np.flatnonzero(changed[0]), [3, 4, 5, 7])


def test_global_marks_are_an_input_of_a_model_that_saves(rng, tmp_path):
    x, marks = keras.Input((None, WIDTH)), keras.Input((None,), dtype="bool")
    mechanism = LongformerAttention(radius=2, num_global=3)
    model = keras.Model([x, marks], MultiHeadAttention(WIDTH, 4, mechanism=mechanism)(x, global_mask=marks))
    data, marked = tokens(rng, 9), np.zeros((B, 9), bool)
    marked[0, [1, 4, 8]] = marked[1, 5] = True
    want = model([data, marked])
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")([data, marked]), want)


def test_marks_that_cannot_be(rng):
    x = tokens(rng, 6)
    with pytest.raises(ValueError, match=r"'local' does not support global tokens.*; use mechanism='longformer'"):
        layer_of(LocalAttention(2))(x, global_mask=np.ones((B, 6), bool))
    layer = layer_of(LongformerAttention(2, num_global=2))
    with pytest.raises(TypeError, match=r"global_mask must be boolean, True = selected. Got dtype float32"):
        layer(x, global_mask=np.ones((B, 6), "float32"))
    with pytest.raises(ValueError, match=r"global_mask must have shape \(batch, length\) = \(2, 6\).*\(2, 5\)"):
        layer(x, global_mask=np.ones((B, 5), bool))
    with pytest.raises(ValueError, match=r"at most 2 global tokens a row. Got 6"):
        layer(x, global_mask=np.ones((B, 6), bool))


# --- axial and the options -------------------------------------------------------------------------------------------


def test_axial_in_a_model_of_unknown_length(rng):
    layer = MultiHeadAttention(WIDTH, 4, mechanism=AxialAttention((2, 5)))
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, layer(inputs))
    x = tokens(rng, 10)
    np.testing.assert_allclose(model(x), layer(x), atol=1e-6)
    with pytest.raises(ValueError, match=r"grid of 2 x 5 = 10 positions and 0 class tokens. Got a sequence of 11"):
        layer(tokens(rng, 11))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(layer, input_signature=[tf.TensorSpec([None, None, WIDTH])])(tokens(rng, 11))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalAttention(radius=-1), "radius must be an integer of at least 0. Got radius=-1"),
        (lambda: LocalAttention(radius=2.5), "radius must be an integer of at least 0. Got radius=2.5"),
        (lambda: LongformerAttention(num_global=0), "num_global must be an integer of at least 1"),
        (lambda: BlockSparseAttention(block_size=0), "block_size must be an integer of at least 1"),
        (lambda: BigBirdAttention(num_random_blocks=-1), "num_random_blocks must be an integer of at least 0"),
        (lambda: RandomAttention(num_keys=0), "num_keys must be an integer of at least 1"),
        (
            lambda: AxialAttention((3,)),
            r"shape must be \(height, width\) or \(depth, height, width\). Got shape=\(3,\)",
        ),
        (lambda: AxialAttention((3, 0)), "shape must be an integer of at least 1. Got shape=0"),
    ],
)
def test_options_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()
