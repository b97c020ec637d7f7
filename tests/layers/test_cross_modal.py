"""Attention between an image and a text."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention.layers import CrossModalAttention
from keras_attention.mechanisms import LinearAttention

B, T, S, H, D = 3, 5, 6, 2, 8  # an image of 2 x 3 features
IMAGE, TEXT = 7, D  # widths: the text's is the model's
DIRECTIONS = ("image_to_text", "text_to_image", "both")


def layer_of(direction, image=IMAGE, text=TEXT, **options):
    layer = CrossModalAttention(D, H, direction=direction, **options)
    layer.build((None, None, image), (None, None, text))
    layer.built = True
    return layer


def randomized(layer):
    rng = np.random.default_rng(7)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.6, w.shape))
    return layer


def inputs(rng, image=IMAGE, text=TEXT):
    return rng.normal(size=(B, S, image)).astype("float32"), rng.normal(size=(B, T, text)).astype("float32")


def some(rng, length):
    keep = rng.random((B, length)) < 0.6
    keep[:, 0] |= ~keep.any(axis=1)
    return keep


def normed(x, norm):
    x = reference.float64(x)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + norm.epsilon) * reference.float64(norm.gamma) + reference.float64(norm.beta)


def expected(layer, image, text, image_mask=None, text_mask=None, attend=reference.softmax):
    """Float64: each direction by the loop of reference.py."""
    sides = {"image": (image, image_mask), "text": (text, text_mask)}
    results = {}
    for way, attention in layer.attentions.items():
        reader, read = way.split("_to_")[::-1]
        x, own_mask = sides[reader]
        memory = normed(sides[read][0], layer.norms[read])
        q, k, v = reference.heads(attention, memory, memory, normed(x, layer.norms[reader]))
        limits = reference.Limits(padding=sides[read][1], query_padding=own_mask)
        heads = attend(q, k, v, limits=limits, scale=1 / np.sqrt(D // H), mechanism=attention.mechanism)
        if own_mask is not None:
            heads = heads * own_mask[:, None, :, None]
        attended = reference.project(reference.join(heads), attention.output_projection)
        own = reference.project(x, layer.projections[reader]) if reader in layer.projections else reference.float64(x)
        results[reader] = own + np.tanh(reference.float64(layer.gates[way])) * attended
    return np.concatenate([results[side] for side in ("text", "image") if side in results], axis=1)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("widths", [(IMAGE, TEXT), (D, 5)], ids=str)
@pytest.mark.parametrize("given", [(), ("image_mask",), ("text_mask",), ("image_mask", "text_mask")], ids=str)
def test_equals_the_loop(rng, direction, widths, given):
    layer = randomized(layer_of(direction, *widths))
    image, text = inputs(rng, *widths)
    masks = {name: some(rng, S if name == "image_mask" else T) for name in given}
    got = layer(image, text, **masks)
    np.testing.assert_allclose(got, expected(layer, image, text, **masks), atol=2e-5)
    assert got.shape == layer.compute_output_shape(image.shape, text.shape)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_map_is_its_rows_one_after_the_other(rng, direction):
    layer = randomized(layer_of(direction))
    image, text = inputs(rng)
    grid, keep = image.reshape(B, 2, 3, IMAGE), some(rng, S)
    want = layer(image, text, image_mask=keep)
    for mask in (keep, keep.reshape(B, 2, 3)):
        got = layer(grid, text, image_mask=mask)
        assert got.shape == layer.compute_output_shape(grid.shape, text.shape)
        np.testing.assert_array_equal(np.reshape(got, want.shape), want)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_start_is_the_identity_and_both_modalities_learn(rng, direction):
    layer = layer_of(direction, image=D)
    image, text = map(tf.constant, inputs(rng, D))
    start = {"image_to_text": text, "text_to_image": image, "both": tf.concat([text, image], axis=1)}[direction]
    np.testing.assert_array_equal(layer(image, text), start)

    def gradients():
        with tf.GradientTape() as tape:
            tape.watch((image, text))
            loss = tf.reduce_sum(layer(image, text) ** 3)
        return tape.gradient(loss, (list(layer.gates.values()), image, text))

    gates, *_ = gradients()
    assert all(np.abs(gate).min() > 0 for gate in gates)  # the gate is not stuck at its zero
    for gate in layer.gates.values():
        gate.assign(tf.fill([D], 0.3))
    assert all(np.abs(x).max() > 1e-4 for x in gradients()[1:])


def test_gradients_equal_differences_of_the_loop(rng):
    layer = randomized(layer_of("both"))
    image, text = inputs(rng)
    masks = {"image_mask": some(rng, S), "text_mask": some(rng, T)}
    weights = rng.normal(size=(B, T + S, D))
    tensors = [tf.constant(image), tf.constant(text)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.reduce_sum(layer(*tensors, **masks) * tf.constant(weights, tf.float32))
    for side, gradient in enumerate(tape.gradient(loss, tensors)):
        for _ in range(6):
            at = tuple(rng.integers(n) for n in gradient.shape)
            values = []
            for step in (1e-4, -1e-4):
                moved = [reference.float64(image), reference.float64(text)]
                moved[side][at] += step
                values.append((expected(layer, *moved, **masks) * weights).sum())
            assert float(gradient[at]) == pytest.approx((values[0] - values[1]) / 2e-4, abs=2e-3)


def test_padding_of_either_side_changes_nothing(rng):
    layer = randomized(layer_of("both"))
    image, text = inputs(rng)
    padded = [np.pad(x, ((0, 0), (0, 2), (0, 0)), constant_values=9) for x in (image, text)]
    masks = {"image_mask": np.arange(S + 2) < np.full((B, 1), S), "text_mask": np.arange(T + 2) < np.full((B, 1), T)}
    got = layer(*padded, **masks).numpy()
    np.testing.assert_allclose(np.concatenate([got[:, :T], got[:, T + 2 : -2]], 1), layer(image, text), atol=1e-5)


def test_a_side_of_nothing_but_padding_adds_nothing(rng):
    layer = randomized(layer_of("image_to_text"))
    layer.attentions["image_to_text"].output_projection.bias.assign(np.zeros(D))
    image, text = map(tf.constant, inputs(rng))
    keep = np.ones((B, S), bool)
    keep[1] = False
    with tf.GradientTape() as tape:
        tape.watch(image)
        y = layer(image, text, image_mask=keep)
        loss = tf.reduce_sum(y[1] ** 2)
    np.testing.assert_allclose(y[1], text[1], atol=1e-6)
    assert np.abs(y[0] - text[0]).max() > 0.1
    np.testing.assert_array_equal(tape.gradient(loss, image), np.zeros(image.shape))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_implicit_masks_count_beside_given_ones_and_go_on(rng, direction):
    layer = randomized(layer_of(direction))
    image, text = map(tf.constant, inputs(rng))
    kept = {"image": some(rng, S), "text": some(rng, T)}
    given = {"image_mask": some(rng, S), "text_mask": some(rng, T)}
    both = {name: given[name] & kept[name[:-5]] for name in given}
    for mask in both.values():
        mask[:, 0] = True
    for name in given:
        given[name][:, 0] = kept[name[:-5]][:, 0] = True
    want = layer(image, text, **both)
    image._keras_mask, text._keras_mask = map(tf.constant, (kept["image"], kept["text"]))
    got = layer(image, text, **given)
    np.testing.assert_array_equal(got, want)
    rows = {"image_to_text": ["text_mask"], "text_to_image": ["image_mask"], "both": ["text_mask", "image_mask"]}
    np.testing.assert_array_equal(got._keras_mask, np.concatenate([both[n] for n in rows[direction]], axis=1))
    np.testing.assert_array_equal(text._keras_mask, kept["text"])  # never taken off, never changed


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_weights_are_returned_for_each_direction(rng, direction):
    layer = randomized(layer_of(direction))
    image, text = inputs(rng)
    keep = some(rng, S)
    y, scores = layer(image, text, image_mask=keep, return_attention_scores=True)
    np.testing.assert_array_equal(y, layer(image, text, image_mask=keep))
    scores = scores if direction == "both" else {direction: scores}
    shapes = {"image_to_text": (B, H, T, S), "text_to_image": (B, H, S, T)}
    assert {way: x.shape for way, x in scores.items()} == {way: shapes[way] for way in layer.directions}
    for x in scores.values():
        # Rows of padding weigh nothing.
        rows = np.ones((B, 1, T)) if x.shape[2] == T else keep[:, None]
        np.testing.assert_allclose(np.sum(x, -1), np.broadcast_to(rows, x.shape[:-1]), atol=1e-5)
    if "image_to_text" in scores:
        assert not np.any(scores["image_to_text"].numpy()[np.broadcast_to(~keep[:, None, None], (B, H, T, S))])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_precision(rng, policy):
    layer = randomized(layer_of("both", dtype=policy))
    image, text = inputs(rng)
    masks = {"image_mask": some(rng, S), "text_mask": some(rng, T)}
    got = layer(image, text, **masks)
    assert got.dtype == layer.compute_dtype and {w.dtype for w in layer.trainable_variables} == {"float32"}
    want = expected(layer, image, text, **masks)
    limit = {"mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}[policy]
    assert np.abs(np.asarray(tf.cast(got, tf.float32)) - want).max() < limit * np.abs(want).max()


@pytest.mark.parametrize("mechanism", [LinearAttention(chunk_size=3), "blockwise", "relu"], ids=str)
def test_any_mechanism_that_reads_another_sequence(rng, mechanism):
    layer = randomized(layer_of("both", mechanism=mechanism, num_kv_heads=1))
    image, text = inputs(rng)
    keep = some(rng, S)
    softmax = randomized(layer_of("both", num_kv_heads=1))
    differs = np.abs(layer(image, text, image_mask=keep) - softmax(image, text, image_mask=keep)).max()
    assert (differs < 2e-5) == (mechanism == "blockwise")
    y = layer(image, text, image_mask=keep)
    again = CrossModalAttention.from_config(layer.get_config())
    again.build((None, None, IMAGE), (None, None, TEXT))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(image, text, image_mask=keep), y)
    image[~keep] = 5
    np.testing.assert_allclose(layer(image, text, image_mask=keep)[:, :T], y[:, :T], atol=1e-5)


def test_dropout_in_training_only(rng):
    layer = randomized(layer_of("image_to_text", dropout_rate=0.5, attention_dropout_rate=0.5, seed=3))
    image, text = inputs(rng)
    np.testing.assert_array_equal(layer(image, text), layer(image, text))
    assert np.abs(layer(image, text, training=True) - layer(image, text)).max() > 0.1


def test_errors_say_what_to_do(rng):
    with pytest.raises(ValueError, match="direction must be one of 'image_to_text', 'text_to_image', 'both'"):
        CrossModalAttention(D, H, direction="sideways")
    with pytest.raises(ValueError, match=r"'local' does not support keys and values of another.*use one of softmax"):
        CrossModalAttention(D, H, mechanism="local")
    with pytest.raises(ValueError, match=r"image must have shape \[B, S, C\] or \[B, H, W, C\].*Got \(3, 7\)"):
        CrossModalAttention(D, H)(np.ones((3, 7), "float32"), np.ones((3, 5, D), "float32"))
    image, text = inputs(rng)
    with pytest.raises(ValueError, match=r"image_mask must have shape \(batch, length\) = \(3, 6\)"):
        layer_of("both")(image, text, image_mask=np.ones((B, T), bool))


CHILD = """
import sys
import numpy as np, tensorflow as tf
folder = sys.argv[1]
given = dict(np.load(folder + "/in.npz"))
served = tf.saved_model.load(folder + "/saved").signatures["serving_default"]
out = {"saved": served(**{name: tf.constant(x) for name, x in given.items()})["y"].numpy()}
import keras, keras_attention
out["keras"] = keras.models.load_model(folder + "/model.keras")(given).numpy()
np.savez(folder + "/out.npz", **out)
"""


def test_files_and_graphs_give_the_same_at_other_sizes(rng, tmp_path):
    """Traced with every size unknown: a `.keras` file and a SavedModel in a new process, and ONNX here."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    grid = keras.Input((None, None, IMAGE), name="grid")
    text = keras.layers.Embedding(11, D, mask_zero=True)(ids)
    fused = CrossModalAttention(D, H, direction="both")(grid, text)
    read = CrossModalAttention(D, H, direction="text_to_image", mechanism="linear")(grid, fused)
    model = keras.Model({"grid": grid, "ids": ids}, keras.layers.GlobalAveragePooling2D()(read))
    for w in model.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))

    def given(batch, height, width, length):
        ids = rng.integers(1, 11, (batch, length)).astype("int32")
        ids[-1, length // 2 :] = 0
        return {"grid": rng.normal(size=(batch, height, width, IMAGE)).astype("float32"), "ids": ids}

    sample = given(3, 2, 5, 4)
    want = model(sample)
    moved = {**sample, "ids": np.pad(sample["ids"], ((0, 0), (0, 3)))}
    np.testing.assert_allclose(model(moved), want, atol=1e-5)  # the implicit mask reaches both layers
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "in.npz", **sample)
    specs = [tf.TensorSpec([None, None, None, IMAGE], tf.float32, "grid"), tf.TensorSpec([None, None], tf.int32, "ids")]
    serve = tf.function(lambda grid, ids: {"y": model({"grid": grid, "ids": ids})}, input_signature=specs)
    holder = tf.Module()
    holder.model, holder.serve = model, serve
    tf.saved_model.save(holder, str(tmp_path / "saved"), signatures=serve)
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-2000:]
    for name, got in np.load(tmp_path / "out.npz").items():
        np.testing.assert_allclose(got, want, atol=1e-5, err_msg=name)

    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    tf2onnx = pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    proto, _ = tf2onnx.convert.from_function(serve, input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in ((1, 1, 1, 1), (2, 3, 2, 7), (3, 2, 5, 4)):
        feeds = given(*sizes)
        np.testing.assert_allclose(session.run(None, feeds)[0], model(feeds), atol=1e-5)


def test_compiled_training_step(rng):
    layer = randomized(layer_of("both"))
    image, text = map(tf.constant, inputs(rng))
    masks = {"image_mask": some(rng, S), "text_mask": some(rng, T)}

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(image, text, **masks, training=True) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    for got, want in zip(tf.function(gradients, jit_compile=True)(), gradients(), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-3)
