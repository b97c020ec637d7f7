"""CLIP: the text tower, the contrastive loss, and the model in every precision, file and graph."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention.models import CLIP, TextEncoder, ViT
from keras_attention.ops.basics.activations import quick_gelu
from keras_attention.ops.vision import contrastive

B, P, V, SIZE = 5, 4, 11, 6


def image_tower(**options):
    """A stand-in for a vision model, of any image size."""
    layers = [
        keras.Input((None, None, 3)),
        keras.layers.Conv2D(7, 3, activation="gelu", **options),
        keras.layers.GlobalAveragePooling2D(**options),
    ]
    return keras.Sequential(layers, name="image_tower")


def text_tower(**options):
    options = {"d_model": 8, "num_heads": 2, "num_layers": 2, "mlp_dim": 10, "max_length": 9, **options}
    return TextEncoder(V, **options)


def randomized(model):
    model.build()
    rng = np.random.default_rng(7)
    for w in model.trainable_variables:
        if w.name != "logit_scale":
            w.assign(rng.normal(0, 0.5, w.shape))
    return model


def clip_of(**options):
    return randomized(CLIP(image_tower(), text_tower(), projection_dim=P, **options))


def pairs(rng, batch=B, length=6):
    text = rng.integers(4, V, (batch, length)).astype("int32")
    for row in text:
        end = rng.integers(1, length)
        row[end], row[end + 1 :] = 3, 0
    return {"images": rng.normal(size=(batch, SIZE, SIZE, 3)).astype("float32"), "text": text}


# ---- the text tower ----------------------------------------------------------------------------------------------


def expected_text(model, ids, valid):
    """Float64 NumPy, one text at a time."""

    def norm(x, layer):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.epsilon)
        return scaled * reference.float64(layer.gamma) + reference.float64(layer.beta)

    vectors = []
    for row, keep in zip(ids, valid):
        row = row[keep]  # what is no real token might as well not be there
        x = (
            reference.float64(model.embedding.embeddings)[row]
            + reference.float64(model.positions.position_emb)[: len(row)]
        )
        x = x[None]
        for block in model.blocks:
            h = norm(x, block.attention_residual.normalization)
            x = x + reference.multi_head_attention(block.attention, h, limits=reference.Limits(causal=True))
            h = norm(x, block.feed_forward_residual.normalization)
            h = reference.project(h, block.feed_forward.inner)
            x = x + reference.project(h / (1 + np.exp(-1.702 * h)), block.feed_forward.outer)
        ends = np.flatnonzero(row == model.eos_id)
        vectors.append(norm(x[0], model.norm)[ends[0] if ends.size else len(row) - 1])
    return np.stack(vectors)


def test_the_text_tower_equals_the_loop(rng):
    model = randomized(text_tower(activation=quick_gelu))
    ids = pairs(rng)["text"]
    ids[1], ids[2] = 7, [8, 3, 9, 3, 0, 0]  # no end of sentence; two of them
    np.testing.assert_allclose(model(ids), expected_text(model, ids, ids != 0), atol=2e-5)
    left = np.zeros((B, 8), "int32")
    for row, given in zip(left, ids):
        real = given[given != 0]
        row[len(row) - len(real) :] = real
    np.testing.assert_allclose(model(left), model(ids), atol=2e-5)
    keep = rng.random(ids.shape) < 0.7
    keep[:, 0] = True
    np.testing.assert_allclose(model(ids, text_mask=keep), expected_text(model, ids, keep), atol=2e-5)
    assert model.compute_output_shape(ids.shape) == model(ids).shape


def test_gradients_of_the_text_tower_equal_differences_of_the_loop(rng):
    model = randomized(text_tower(activation=quick_gelu))
    ids = pairs(rng)["text"]
    weights = rng.normal(size=(B, 8))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(ids) * tf.constant(weights, tf.float32))
    variables = [model.embedding.embeddings, model.blocks[0].attention.key_projection.kernel]
    for variable, gradient in zip(variables, tape.gradient(loss, [v.value for v in variables])):
        gradient, value = tf.convert_to_tensor(gradient).numpy(), variable.numpy()
        for _ in range(4):
            at = tuple(rng.integers(n) for n in value.shape) if variable is not variables[0] else (ids[0, 0], 3)
            found = []
            for step in (1e-2, -1e-2):
                moved = value.copy()
                moved[at] += step
                variable.assign(moved)
                found.append((expected_text(model, ids, ids != 0) * weights).sum())
            variable.assign(value)
            assert gradient[at] == pytest.approx((found[0] - found[1]) / 2e-2, rel=2e-2, abs=2e-3)


def test_nothing_after_the_end_of_a_text_matters(rng):
    model = randomized(text_tower(pad_id=None))
    ids = np.array([[2, 0, 7, 3, 0, 0], [2, 5, 3, 3, 3, 3]])  # id 0 is a token like others
    want = model(ids)
    ids[0, 4:], ids[1, 3:] = 9, 6
    np.testing.assert_allclose(model(ids), want, atol=1e-6)
    ids[0, 1] = 8
    assert np.abs(model(ids) - want)[0].max() > 1e-2


def test_a_text_that_is_too_long_is_refused_or_nan():
    model = randomized(text_tower())
    with pytest.raises(ValueError, match=r"positions \(max_len=9\)"):
        model(np.ones((2, 10), "int32"))
    unknown = tf.function(model, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    assert np.isnan(unknown(tf.ones([2, 10], tf.int32))).all() and np.isfinite(unknown(tf.ones([2, 9], tf.int32))).all()


# ---- the loss ----------------------------------------------------------------------------------------------------


def nce(image, text, scale, same):
    """Float64: the loss of each pair, one candidate at a time."""
    losses = np.zeros(len(image))
    for x, others in ((image, text), (text, image)):
        for i in range(len(x)):
            candidates = [j for j in range(len(x)) if j == i or not same[i, j]]
            logits = {j: scale * sum(a * b for a, b in zip(x[i], others[j])) for j in candidates}
            largest = max(logits.values())
            total = sum(np.exp(value - largest) for value in logits.values())
            losses[i] -= (logits[i] - largest - np.log(total)) / 2
    return losses


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("scale", [1.0, 14.3, 100.0])
@pytest.mark.parametrize("duplicates", [False, True])
def test_info_nce_equals_the_loop_in_value_and_gradient(rng, scale, duplicates):
    image, text = unit(rng.normal(size=(B, P))), unit(rng.normal(size=(B, P)))
    same = np.eye(B, dtype=bool) if rng.random() < 0.5 else np.zeros((B, B), bool)
    if duplicates:
        same[1, 3] = same[3, 1] = same[0, 2] = same[2, 0] = True
    tensors = [tf.constant(x, tf.float32) for x in (image, text, scale)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        losses = contrastive.info_nce(*tensors, duplicates=tf.constant(same) if duplicates else None)
        loss = tf.reduce_mean(losses)
    assert losses.dtype == tf.float32
    np.testing.assert_allclose(losses, nce(image, text, scale, same), rtol=1e-5, atol=2e-6 * scale)
    for which, gradient in enumerate(tape.gradient(loss, tensors)):
        given = [image, text, np.array(scale)]
        difference = np.zeros(np.shape(given[which]))
        for at in np.ndindex(difference.shape):
            values = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in given]
                moved[which][at] += step
                values.append(nce(*moved, same).mean())
            difference[at] = (values[0] - values[1]) / 2e-6
        np.testing.assert_allclose(gradient, difference, rtol=1e-3, atol=1e-5 * scale)


def test_row_marks_tell_rows_apart(rng):
    ids = rng.integers(0, 50, (4000, 3)).astype("int32")
    marks = contrastive.row_marks(tf.constant(ids)).numpy()
    assert len(np.unique(marks)) == len(np.unique(ids, axis=0))
    swapped = contrastive.row_marks(tf.constant(ids[:, ::-1])).numpy()
    np.testing.assert_array_equal(swapped == marks, ids[:, 0] == ids[:, 2])
    padded = np.pad(ids, ((0, 0), (0, 2)), constant_values=7)
    np.testing.assert_array_equal(contrastive.row_marks(padded, np.arange(5) < np.full((4000, 1), 3)), marks)


def test_the_models_loss_leaves_equal_texts_out(rng):
    model = clip_of(logit_scale=5.0)
    x = pairs(rng)
    x["text"][3] = x["text"][0]
    same = np.zeros((B, B), bool)
    same[0, 3] = same[3, 0] = True
    y = model(x)
    losses = nce(*(reference.float64(y[name]) for name in ("image_embeds", "text_embeds")), 5.0, same)
    assert float(model.compute_loss(x, y_pred=y)) == pytest.approx(losses.mean(), abs=1e-5)
    weights = rng.random(B)
    got = model.compute_loss(x, y_pred=y, sample_weight=tf.constant(weights))
    assert float(got) == pytest.approx((weights * losses).sum() / weights.sum(), abs=1e-5)
    model.compile("sgd")
    np.testing.assert_allclose(model.evaluate(x, batch_size=B, verbose=0), losses.mean(), atol=1e-5)
    with pytest.raises(ValueError, match=r"CLIP has its own loss.*Got labels \(y\)"):
        model.compute_loss(x, y=np.arange(B), y_pred=y)
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match=r"Got loss= in compile\(\)"):
        model.compute_loss(x, y_pred=y)


def test_the_factor_stays_within_its_bound(rng):
    """A pair that is told apart well pushes the factor up; at the bound it stays, and comes down again."""
    model = clip_of(logit_scale=4.9, max_logit_scale=5.0)
    assert model.logit_scale.dtype == "float32"
    optimizer = keras.optimizers.SGD(50.0)
    x = pairs(rng, batch=3)
    vectors = tf.constant(np.eye(3, P), tf.float32)

    def step(texts):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y_pred={"image_embeds": vectors, "text_embeds": texts})
        optimizer.apply([tape.gradient(loss, model.logit_scale.value)], [model.logit_scale])
        return float(model.scale())

    assert [step(vectors) for _ in range(3)] == pytest.approx([5.0] * 3, rel=1e-6)
    assert step(tf.roll(vectors, 1, axis=0)) < 4.9
    model.logit_scale.assign(9.0)  # from elsewhere
    assert float(model.scale()) == pytest.approx(5.0, rel=1e-6)


# ---- the model ---------------------------------------------------------------------------------------------------


def test_similarities_are_scaled_products_of_unit_vectors(rng):
    model = clip_of()
    x = pairs(rng)
    out = model(x)
    for name, vectors in out.items():
        assert vectors.dtype == tf.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        np.testing.assert_array_equal(
            vectors, getattr(model, f"encode_{name.split('_')[0]}")(x[{"i": "images"}.get(name[0], "text")])
        )
    texts = out["text_embeds"][:2]
    want = reference.float64(out["image_embeds"]) @ reference.float64(texts).T / 0.07
    np.testing.assert_allclose(model.similarities(out["image_embeds"], texts), want, atol=1e-4)
    features = reference.float64(model.image_tower(x["images"]))
    np.testing.assert_allclose(
        out["image_embeds"], unit(features @ reference.float64(model.image_projection.kernel)), atol=1e-5
    )


@pytest.mark.slow
def test_a_few_steps_tell_the_pairs_apart(rng):
    keras.utils.set_random_seed(1)
    model = CLIP(image_tower(), text_tower(), projection_dim=P)
    model.compile(keras.optimizers.Adam(0.02))
    x = pairs(rng, batch=8)
    x["text"][:, 0] = np.arange(4, 12) % V  # all different
    before = model.evaluate(x, batch_size=8, verbose=0)
    model.fit(tf.data.Dataset.from_tensors((x,)).repeat(40), verbose=0)
    assert model.evaluate(x, batch_size=8, verbose=0) < 0.25 * before
    out = model(x)
    found = np.argmax(model.similarities(out["image_embeds"], out["text_embeds"]), axis=1)
    assert (found == np.arange(8)).mean() >= 0.75


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_precision(rng, policy):
    x = pairs(rng)
    whole = clip_of()
    half = randomized(CLIP(image_tower(dtype=policy), text_tower(dtype=policy), projection_dim=P, dtype=policy))
    got, want = half(x), whole(x)
    limit = {"mixed_float16": 1e-2, "mixed_bfloat16": 6e-2}[policy]
    for name in want:
        assert got[name].dtype == tf.float32
        np.testing.assert_allclose(got[name], want[name], atol=limit)
    with tf.GradientTape() as tape:
        loss = half.compute_loss(x, y_pred=half(x))
    assert loss.dtype == tf.float32 and float(loss) == pytest.approx(float(whole.compute_loss(x, y_pred=want)), abs=0.5)
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in tape.gradient(loss, half.trainable_variables))


def test_the_config_holds_the_towers(rng):
    model = clip_of(logit_scale=3.0, max_logit_scale=7.0, name="pairs")
    again = CLIP.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    again.build_from_config(model.get_build_config())
    again.set_weights(model.get_weights())
    x = pairs(rng)
    for name, value in model(x).items():
        np.testing.assert_array_equal(again(x)[name], value)


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"logit_scale must be at most max_logit_scale. Got logit_scale=20, max"):
        CLIP(image_tower(), text_tower(), logit_scale=20, max_logit_scale=10)
    with pytest.raises(ValueError, match=r"image_tower must be a Keras model or its config. Got 'ViT'"):
        CLIP("ViT", text_tower())
    with pytest.raises(ValueError, match=r"image_tower must give one vector for each row.*num_classes=None"):
        CLIP(keras.Sequential([keras.Input((None, None, 3)), keras.layers.Conv2D(4, 3)]), text_tower()).build()
    with pytest.raises(ValueError, match=r"eos_id must lie below vocab_size=11. Got eos_id=49407"):
        text_tower(eos_id=49407)
    with pytest.raises(ValueError, match="does not support use_causal_mask=True"):
        text_tower(mechanism="nystrom")(np.ones((1, 4), "int32"))
    deeper = randomized(CLIP(image_tower(), text_tower(num_layers=3), projection_dim=P))
    deeper.save_weights(tmp_path / "deeper.weights.h5")
    with pytest.raises(ValueError, match=r"holds text_tower/blocks of 3 layers, the model has 2"):
        clip_of().load_weights(tmp_path / "deeper.weights.h5")


CHILD = """
import sys
import numpy as np, tensorflow as tf
folder = sys.argv[1]
given = dict(np.load(folder + "/in.npz"))
out = {}
served = tf.saved_model.load(folder + "/saved").signatures["serving_default"]
for name, x in served(**{name: tf.constant(x) for name, x in given.items()}).items():
    out["saved/" + name] = x.numpy()
import keras, keras_attention.models
model = keras.models.load_model(folder + "/model.keras")
for name, x in model(given).items():
    out["keras/" + name] = x.numpy()
np.savez(folder + "/out.npz", **out)
"""


def test_files_and_graphs_give_the_same_at_other_sizes(rng, tmp_path):
    """A `.keras` file and a SavedModel with unknown sizes in a new process, with a ViT as image tower."""
    tower = ViT(8, 3, d_model=8, num_layers=1, num_heads=2, pooling="token")
    model = randomized(CLIP(tower, text_tower(), projection_dim=P))
    x = pairs(rng, batch=3, length=7)
    want = model(x)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "in.npz", **x)
    specs = [tf.TensorSpec([None, None, None, 3], tf.float32, "images"), tf.TensorSpec([None, None], tf.int32, "text")]
    holder = tf.Module()
    holder.model = model
    serve = tf.function(lambda images, text: model({"images": images, "text": text}), input_signature=specs)
    tf.saved_model.save(holder, str(tmp_path / "saved"), signatures=serve)
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-2000:]
    got = np.load(tmp_path / "out.npz")
    for name, value in want.items():
        np.testing.assert_array_equal(got[f"keras/{name}"], value)
        np.testing.assert_allclose(got[f"saved/{name}"], value, atol=1e-5)


def test_compiled_loss(rng):
    model = clip_of()
    x = pairs(rng)
    x["text"][3] = x["text"][0]
    vectors = [tf.constant(unit(rng.normal(size=(B, P))), tf.float32) for _ in range(2)]

    def gradients(*vectors):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            loss = model.compute_loss(x, y_pred=dict(zip(("image_embeds", "text_embeds"), vectors)))
        return loss, *tape.gradient(loss, vectors)

    for got, want in zip(tf.function(gradients, jit_compile=True)(*vectors), gradients(*vectors), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)
