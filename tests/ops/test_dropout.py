"""Dropout by position: its mask against Python's integers, how random it looks, and its layer."""

import keras
import numpy as np
import pytest
import reference_blockwise as reference
import tensorflow as tf

from keras_attention.layers.dropout import Dropout
from keras_attention.ops.dense import dropout_bits
from keras_attention.ops.dense.dropout import dropped

SEED, RATE = [17, -5], 0.3


@pytest.mark.parametrize("columns", [1, 6, 7])
def test_all_columns_at_once_and_one_by_one(columns):
    keys = dropout_bits.row_keys(SEED, tf.range(6), tf.range(5))
    want = reference.keep_mask(SEED, 2, 3, 5, columns, RATE).reshape(6, 5, columns)
    np.testing.assert_array_equal(dropout_bits.keep_all(keys, columns, RATE), want)
    order = np.random.default_rng(0).permutation(columns)
    np.testing.assert_array_equal(dropout_bits.keep_mask(keys, order, RATE), want[..., order])


@pytest.mark.parametrize("shape", [(7,), (5, 8), (2, 5, 7), (2, 3, 5, 8), (2, 3, 1, 5, 7)], ids=len)
def test_value_and_gradient_are_the_mask(rng, shape):
    """Case 30, closed form: y is x / (1 - rate) or 0, and the gradient is y / x."""
    heads, rows = int(np.prod(shape[:-2])), shape[-2] if len(shape) > 1 else 1
    keep = reference.keep_mask(SEED, 1, heads, rows, shape[-1], RATE).reshape(shape)
    x = tf.constant(rng.normal(size=shape) + 3, tf.float32)
    upstream = rng.normal(size=shape).astype("float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = dropped(x, RATE, SEED)
    np.testing.assert_allclose(y, x * keep / 0.7, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x, upstream), upstream * keep / 0.7, rtol=1e-6)


def test_graph_and_xla_with_unknown_sizes_give_the_same_mask(rng):
    x = rng.normal(size=(3, 4, 7)).astype("float32")
    want = dropped(x, RATE, SEED)
    for jit in (False, True):
        specs = [tf.TensorSpec([None] * 3), tf.TensorSpec([2], tf.int32)]
        run = tf.function(lambda x, seed: dropped(x, RATE, seed), specs, jit_compile=jit, autograph=False)
        np.testing.assert_array_equal(run(x, SEED) == 0, want == 0)
        np.testing.assert_allclose(run(x, SEED), want, rtol=1e-6)
        assert run(x[:0], SEED).shape == (0, 4, 7)


def test_what_is_dropped_is_zero_even_if_it_is_not_a_number(rng):
    keep = dropped(np.ones((5, 8), "float32"), RATE, SEED).numpy() > 0
    y = dropped(np.where(keep, 1.0, np.nan).astype("float32"), RATE, SEED)
    np.testing.assert_allclose(y, keep / 0.7, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(rng, dtype):
    x = tf.cast(rng.normal(size=(5, 8)), dtype)
    y = dropped(x, RATE, SEED)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y == 0, dropped(tf.cast(x, "float32"), RATE, SEED) == 0)


def test_the_seed_is_required():
    with pytest.raises(ValueError, match=r"dropout_rate=0\.3 needs dropout_seed"):
        dropped(np.ones((2, 3)), RATE, None)
    x = tf.ones((2, 3))
    assert dropped(x, 0.0, None) is x


def test_steps_are_independent_draws():
    """As a layer draws them: the seed's second number counts the steps."""
    rate, steps, shape = 0.1, 40, (50, 64)
    keep = np.stack([dropped(tf.ones(shape), rate, [3, step]).numpy() > 0 for step in range(steps)]).astype(float)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(keep.mean() - 0.9) < 4 * deviation / np.sqrt(keep.size)
    for axes, count in (((0,), steps), ((1,), shape[0]), ((2,), shape[1])):
        spread = np.std(keep.mean(axis=axes)) / (deviation / np.sqrt(count))
        assert 0.9 < spread < 1.1, axes
    centred = (keep - 0.9) / deviation
    products = {
        "halves of one draw": centred[:, :, ::2] * centred[:, :, 1::2],
        "next step": centred[1:] * centred[:-1],
        "next row": centred[:, 1:] * centred[:, :-1],
        "a pair further": centred[:, :, 2:] * centred[:, :, :-2],
        "three": centred[1:, 1:, 1:] * centred[:-1, 1:, 1:] * centred[:-1, :-1, :-1],
    }
    for name, product in products.items():
        assert abs(product.mean()) < 4 / np.sqrt(product.size), name


@pytest.mark.parametrize("rate", [0.001, 0.5, 0.98])
def test_the_rate_is_exact_to_16_bits(rate):
    keep = dropped(tf.ones((1000, 1000)), rate, [1, 2]).numpy() > 0
    assert abs((~keep).mean() - rate) < 4 * np.sqrt(rate * (1 - rate)) / 1000 + 2**-17


@pytest.mark.parametrize("rate", [1e-5, 0.99999])
def test_rates_near_0_and_1_are_exact_too(rate):
    """Case 96: 16 bits keep half as much again at 0.99999."""
    rare = dropped(tf.ones((4000, 4000)), rate, [1, 2]).numpy() > 0
    rare = rare if rate > 0.5 else ~rare
    assert abs(rare.sum() - 160) < 4 * np.sqrt(160)
    keys = dropout_bits.row_keys(SEED, tf.range(6), tf.range(5))
    want = reference.keep_mask(SEED, 2, 3, 5, 7, 0.999).reshape(6, 5, 7)
    np.testing.assert_array_equal(dropout_bits.keep_all(keys, 7, 0.999), want)
    order = np.random.default_rng(0).permutation(7)
    np.testing.assert_array_equal(dropout_bits.keep_mask(keys, order, 0.999), want[..., order])


def test_streams_of_one_seed_are_seeds_of_their_own():
    """No stream of a call is a stream of another call, whose seed is one more, or that of another layer."""
    seeds = [[layer, step] for layer in (3, 4, 13) for step in range(40)]
    found = [tuple(np.asarray(dropout_bits.stream(tf.constant(seed), n))) for seed in seeds for n in range(4)]
    assert found[0] == (3, 0) and len(set(found)) == len(found)
    assert dropout_bits.stream(None, 2) is None
    wide = dropout_bits.stream(tf.constant([7, 2**32 - 5], tf.int64), 1)
    np.testing.assert_array_equal(wide, dropout_bits.stream(tf.constant([7, -5]), 1))
    shape, deviation = (200, 300), np.sqrt(0.3 * 0.7)
    own, other = (
        ((dropped(tf.ones(shape), 0.3, seed).numpy() > 0) - 0.7) / deviation
        for seed in (SEED, dropout_bits.stream(tf.constant(SEED), 1))
    )
    assert abs((own * other).mean()) < 4 / np.sqrt(own.size)


# --- the layer -----------------------------------------------------------------------------------------------------


def test_layer_drops_in_training_only_and_goes_on(rng):
    x = rng.normal(size=(3, 5, 8)).astype("float32")
    layer, again = Dropout(0.4, seed=3), Dropout(0.4, seed=3)
    np.testing.assert_array_equal(layer(x), x)
    first, second = layer(x, training=True), layer(x, training=True)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal(again(x, training=True), first)
    again.seed_generator.state.assign([3, 1])  # what a checkpoint restores
    np.testing.assert_array_equal(again(x, training=True), second)
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)


def test_layer_has_the_state_and_config_of_keras_own(rng, tmp_path):
    x = rng.normal(size=(3, 5)).astype("float32")
    theirs = keras.layers.Dropout(0.4, seed=9, name="drop")
    theirs(x, training=True)
    ours = keras.Sequential([keras.Input((5,)), Dropout.from_config(theirs.get_config())])
    for own, other in zip(ours.variables, theirs.variables, strict=True):
        assert own.path.endswith(other.path.split("/")[-1])
        own.assign(other)
    np.testing.assert_array_equal(ours.layers[0].seed_generator.state, [9, 1])
    ours.save(tmp_path / "ours.keras")
    again = keras.models.load_model(tmp_path / "ours.keras")
    assert type(again.layers[0]) is Dropout and again.layers[0].get_config() == theirs.get_config()
    by_row = Dropout(0.5, seed=1, noise_shape=(None, 1))(np.ones((40, 5), "float32"), training=True)
    assert set(np.unique(np.sum(by_row, axis=1))) == {0.0, 10.0}
    with pytest.raises(ValueError, match=r"rate must be a number of at least 0 and below 1\. Got rate=1"):
        Dropout(1.0)
