"""The position layers by themselves, each against loops over its formula."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference_positions import bucket, slopes, turned

from keras_attention.layers import ALiBi, RelativePositionBias, RelativePositionBias2D, RotaryEmbedding

B, N, T, S, D = 2, 3, 5, 7, 6  # all different: a swapped axis cannot pass


# --- rotary --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 2, 4])
def test_rotary_turns_each_pair(rng, layout, rotary_dim):
    x = rng.normal(size=(B, N, T, D)).astype("float32")
    places = rng.integers(0, 300, size=(B, T))
    layer = RotaryEmbedding(rotary_dim, base=100.0, layout=layout)
    got = layer(x, places)
    for b, n, t in np.ndindex(B, N, T):
        want = turned(x[b, n, t], places[b, t], 100.0, rotary_dim or D, layout)
        np.testing.assert_allclose(got[b, n, t], want, atol=3e-5)
    np.testing.assert_allclose(layer(x), layer(x, np.arange(T)), atol=1e-6)
    np.testing.assert_allclose(layer(x, places[:1]), layer(x, np.repeat(places[:1], B, axis=0)), atol=1e-6)


def test_products_of_turned_vectors_know_the_distance_only(rng):
    q, k = rng.normal(size=(2, 1, N, 1, D)).astype("float32")
    layer = RotaryEmbedding()
    products = [np.sum(layer(q, np.array([100 + t])) * layer(k, np.array([40 + t])), axis=-1) for t in (0, 1, 31)]
    np.testing.assert_allclose(products[1:], [products[0]] * 2, atol=1e-4)
    assert np.abs(products[0] - np.sum(layer(q, np.array([100])) * layer(k, np.array([41])), axis=-1)).max() > 1e-2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_angles_of_large_positions_keep_float32(rng, dtype):
    """In bfloat16 4097 is 4096: the fastest pair would be turned by a whole radian too little."""
    x = tf.cast(rng.normal(size=(1, 1, 1, D)), dtype)
    got = RotaryEmbedding(dtype=dtype)(x, np.array([4097]))
    assert got.dtype == x.dtype
    want = turned(tf.cast(x, "float64").numpy()[0, 0, 0], 4097, 10000.0, D, "half")
    np.testing.assert_allclose(tf.cast(got, "float64")[0, 0, 0], want, atol=2e-2)


@pytest.mark.parametrize("rotary_dim, named", [(8, "use RotaryEmbedding.rotary_dim=6."), (3, "Got 3")])
def test_rotary_refuses_what_is_no_pair(rotary_dim, named):
    with pytest.raises(ValueError, match=f"must be even and at most 6.*{named}"):
        RotaryEmbedding(rotary_dim)(np.zeros((B, N, T, D), "float32"))
    with pytest.raises(ValueError, match="layout must be one of 'half', 'interleaved'"):
        RotaryEmbedding(layout="neox")


# --- ALiBi ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12])
def test_alibi_falls_with_the_distance_on_both_sides(heads):
    got = ALiBi(heads)(T, S).numpy()
    assert got.shape == (heads, T, S) and got.dtype == np.float32
    for h, t, s in np.ndindex(heads, T, S):
        # The last query stands at the last key.
        np.testing.assert_allclose(got[h, t, s], -slopes(heads)[h] * abs(s - (t + S - T)), rtol=1e-6)


def test_alibi_slopes_of_eight_heads_are_powers_of_a_half():
    np.testing.assert_allclose(-ALiBi(8)(2)[:, 1, 0], [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])


# --- relative bias -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (8, 20), (4, 3)])
def test_relative_bias_reads_the_bucket_of_the_distance(rng, num_buckets, max_distance, bidirectional):
    layer = RelativePositionBias(N, num_buckets, max_distance, bidirectional)
    table = rng.normal(size=(num_buckets, N)).astype("float32")
    layer.table.assign(table)
    for q_length, k_length in ((T, S), (150, 150), (1, 200)):
        got = layer(q_length, k_length).numpy()
        assert got.shape == (N, q_length, k_length) and got.dtype == np.float32
        for t in {0, q_length // 2, q_length - 1}:
            for s in range(k_length):
                distance = s - (t + k_length - q_length)
                want = table[bucket(distance, num_buckets, max_distance, bidirectional)]
                np.testing.assert_array_equal(got[:, t, s], want)
    np.testing.assert_array_equal(layer(T), layer(T, T))


def test_buckets_of_the_first_t5():
    """8 distances alone, then eight steps of 16^(1/8) up to 128; behind and ahead."""
    layer = RelativePositionBias(1)
    layer.table.assign(np.arange(32.0)[:, None])
    row = layer(301)[0, 150].numpy()  # distances -150 ... 150
    starts = [150 - d for d in range(150) if row[150 - d] != row[150 - d + 1]]
    assert [150 - s for s in starts if s < 150][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [150 - s for s in starts][-7:] == [12, 16, 23, 32, 46, 64, 91]
    np.testing.assert_array_equal(row[151:], row[149::-1] + 16)


def test_relative_bias_has_gradients_and_unknown_lengths(rng):
    layer = RelativePositionBias(N, 8, 20)
    upstream = rng.normal(size=(N, T, S)).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([])], jit_compile=False)
    def gradient(t, s):
        t, s = tf.cast(t, tf.int32), tf.cast(s, tf.int32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(t, s) * upstream)
        return tf.convert_to_tensor(tape.gradient(loss, layer.table))

    want = np.zeros((8, N))
    for n, t, s in np.ndindex(N, T, S):
        want[bucket(s - (t + S - T), 8, 20, True), n] += upstream[n, t, s]
    np.testing.assert_allclose(gradient(T, S), want, atol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_buckets": 6}, "multiple of 4 for both directions. Got num_buckets=6; use 8"),
        ({"num_buckets": 3, "bidirectional": False}, "multiple of 2. Got num_buckets=3; use 4"),
        ({"max_distance": 8}, "larger than the 8 distances"),
        ({"num_buckets": 0}, "num_buckets must be an integer of at least 1"),
    ],
)
def test_relative_bias_refuses_what_has_no_buckets(options, message):
    with pytest.raises(ValueError, match=message):
        RelativePositionBias(N, **options)


# --- grids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [(2, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_grid_bias_reads_the_offset(rng, window, prefix):
    height, width = window
    layer = RelativePositionBias2D(window, N, prefix)
    for w in layer.weights:
        w.assign(rng.normal(size=w.shape))
    got = layer().numpy()
    cells = height * width
    assert got.shape == (N, prefix + cells, prefix + cells) and got.dtype == np.float32
    table = layer.table.numpy().reshape(2 * height - 1, 2 * width - 1, N)
    for query, key in np.ndindex(prefix + cells, prefix + cells):
        if query >= prefix and key >= prefix:
            (y, x), (other_y, other_x) = divmod(query - prefix, width), divmod(key - prefix, width)
            want = table[other_y - y + height - 1, other_x - x + width - 1]
        else:
            # From the grid to a token before it, from such a token to the grid, from one to another.
            want = layer.prefix_table[0 if query >= prefix else 1 if key >= prefix else 2]
        np.testing.assert_array_equal(got[:, query, key], want)


def test_grid_bias_for_another_window_keeps_its_ends_and_its_lines(rng):
    layer = RelativePositionBias2D((3, 4), N, 1)
    for w in layer.weights:
        w.assign(rng.normal(size=w.shape))
    bigger = layer.resized((5, 7))
    before = layer.table.numpy().reshape(5, 7, N)
    after = bigger.table.numpy().reshape(9, 13, N)
    for y, x in np.ndindex(9, 13):
        row, column = y / 2, x / 2  # 9 places over 5, 13 over 7
        want = 0
        for down, right in np.ndindex(5, 7):
            want += before[down, right] * max(0, 1 - abs(row - down)) * max(0, 1 - abs(column - right))
        np.testing.assert_allclose(after[y, x], want, atol=1e-6)
    np.testing.assert_array_equal(bigger.prefix_table, layer.prefix_table)
    np.testing.assert_allclose(bigger.resized((3, 4)).table, layer.table, atol=1e-6)
    np.testing.assert_allclose(layer.resized([3, 4])(), layer())
    one = RelativePositionBias2D((1, 1), N).resized((2, 2))
    assert len(np.unique(one.table.numpy(), axis=0)) == 1


@pytest.mark.parametrize("window", [3, (1, 2, 3), (0, 2)])
def test_grid_bias_refuses_what_is_no_window(window):
    with pytest.raises(ValueError, match="window must be"):
        RelativePositionBias2D(window, N)


# --- all -----------------------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("tests")
class Biased(keras.layers.Layer):
    """Something to save: a user's own layer that adds each bias to its input [B, N, T, T]."""

    def __init__(self, parts=None, **kwargs):
        super().__init__(**kwargs)
        self.parts = [keras.saving.deserialize_keras_object(p) if isinstance(p, dict) else p for p in parts]

    def call(self, x):
        for part in self.parts:
            x = x + tf.cast(part() if isinstance(part, RelativePositionBias2D) else part(x.shape[-1]), x.dtype)
        return x

    def get_config(self):
        return {**super().get_config(), "parts": [keras.saving.serialize_keras_object(p) for p in self.parts]}


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_biases_stay_in_float32_and_come_back_from_a_file(rng, tmp_path, policy):
    options = {"dtype": policy}
    parts = [
        ALiBi(N, **options),
        RelativePositionBias(N, 8, 20, **options),
        RelativePositionBias2D((2, 3), N, **options),
    ]
    inputs = keras.Input((N, 6, 6))
    model = keras.Model(inputs, Biased(parts, dtype="float32")(inputs))
    for w in model.weights:
        w.assign(rng.normal(size=w.shape))
    assert len(model.weights) == 2 and {part(6).dtype for part in parts[:2]} == {tf.float32}
    model.save(tmp_path / "m.keras")
    x = rng.normal(size=(B, N, 6, 6)).astype("float32")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "m.keras")(x), model(x))
