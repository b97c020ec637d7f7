"""CLIP's towers as a SavedModel and as an ONNX folder."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export import export_onnx, export_saved_model
from keras_attention.export.kinds import clip
from keras_attention.export.plan import Given
from keras_attention.images import ImageInput
from keras_attention.models import CLIP, TextEncoder, ViT
from keras_attention.text import SentencePieceTokenizer

GRAPHS = ("model.onnx", "text_model.onnx", "vision_model.onnx")
P = 6
IMAGES = ImageInput(height=9, width=12, channels=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(["a cat sat", "the hat is a mat", "the cat sat on the mat"] * 9, vocab_size=24)


def clip_of(vocab_size, channels=3, **options):
    keras.utils.set_random_seed(5)
    image_tower = ViT((9, 12), 4, channels=channels, d_model=8, num_layers=1, num_heads=2, dropout_rate=0.3, **options)
    text_tower = TextEncoder(
        vocab_size, d_model=12, num_layers=1, num_heads=3, max_length=8, attention_dropout_rate=0.3, **options
    )
    model = CLIP(image_tower, text_tower, projection_dim=P, **options)
    model.build()
    for weight in model.trainable_variables:  # biases of zero and scales of one would hide a lost weight
        weight.assign(weight + tf.random.normal(weight.shape, stddev=0.2, dtype=weight.dtype))
    return model


CHILD = """
import sys
import numpy as np, tensorflow as tf, tensorflow_text
folder, model = sys.argv[1], tf.saved_model.load(sys.argv[2])
given = np.load(folder + "/in.npz")
out = {
    "image": model.signatures["encode_image"](images=tf.constant(given["pixels"]))["image_embeds"],
    "text": model.signatures["encode_text"](text=tf.constant(["the cat sat", "", "a mat " * 9]))["text_embeds"],
    "default": model.signatures["serving_default"](images=tf.constant(given["pixels"]))["image_embeds"],
}
assert "keras_attention" not in sys.modules
np.savez(folder + "/out.npz", **{name: x.numpy() for name, x in out.items()})
"""


def test_a_saved_model_encodes_pixels_and_texts_by_itself(tokenizer, tmp_path, rng):
    model = clip_of(tokenizer.vocab_size)
    report = export_saved_model(model, tmp_path / "clip", tokenizer=tokenizer, images=IMAGES)
    assert set(report.signatures) == {"encode_image", "encode_ids", "encode_text", "similarities", "serving_default"}
    pixels = rng.integers(0, 256, (2, 9, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "in.npz", pixels=pixels)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), str(report.path)], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]
    got = np.load(tmp_path / "out.npz")
    want = model.encode_image(IMAGES.normalized(pixels))
    np.testing.assert_allclose(got["image"], want, atol=1e-5)
    np.testing.assert_allclose(got["default"], want, atol=1e-5)
    ids = tokenizer.tokenize(["the cat sat", "", "a mat " * 9], truncate=8)
    np.testing.assert_allclose(got["text"], model.encode_text(ids), atol=1e-5)
    described = json.loads((report.path / "assets.extra" / "export.json").read_text())
    assert described["options"]["images"]["mean"] == [0.4, 0.5, 0.6]
    served = tf.saved_model.load(str(report.path)).signatures
    # What stands past a row's length is not read; images of another size are brought to the model's.
    ids = np.array([[2, 9, 7, 3, 9, 9], [2, 5, 3, 5, 5, 5]], np.int32)
    got = served["encode_ids"](input_ids=tf.constant(ids), input_lengths=tf.constant([4, 3]))["text_embeds"]
    want = model.encode_text(np.array([[2, 9, 7, 3], [2, 5, 3, 0]]))
    np.testing.assert_allclose(got, want, atol=1e-5)
    large = np.repeat(np.repeat(pixels, 2, axis=1), 2, axis=2)
    near = served["encode_image"](images=tf.constant(large))["image_embeds"]
    assert np.sum(near * model.encode_image(IMAGES.normalized(pixels)), axis=1).min() > 0.9


def test_an_onnx_folder_has_optimums_names(tokenizer, tmp_path, rng):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    model = clip_of(tokenizer.vocab_size, dtype="mixed_bfloat16")
    report = export_onnx(model, tmp_path / "clip", tokenizer=tokenizer, images=IMAGES)
    assert report.largest_difference < 1e-4
    names = {path.name for path in report.path.iterdir()}
    files = {"config.json", "preprocessor_config.json", "tokenizer.model", "export.json", *GRAPHS}
    assert names == files

    def ports(values):
        return {value.name: value.shape for value in values}

    session = onnxruntime.InferenceSession(str(report.path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert ports(session.get_inputs()) == {
        "input_ids": ["text_batch_size", "sequence_length"],
        "pixel_values": ["image_batch_size", 3, 9, 12],
        "attention_mask": ["text_batch_size", "sequence_length"],
    }
    assert ports(session.get_outputs()) == {
        "logits_per_image": ["image_batch_size", "text_batch_size"],
        "logits_per_text": ["text_batch_size", "image_batch_size"],
        "text_embeds": ["text_batch_size", P],
        "image_embeds": ["image_batch_size", P],
    }
    config = json.loads((report.path / "config.json").read_text())
    assert config["model_type"] == "clip" and config["text_config"]["vocab_size"] == tokenizer.vocab_size
    processor = json.loads((report.path / "preprocessor_config.json").read_text())
    assert processor["size"] == {"height": 9, "width": 12} and processor["image_std"] == [0.2, 0.25, 0.3]
    # Without training nothing is exported that drops or rounds: the same weights in float32.
    exact = CLIP.from_config(clip.in_float32(model).get_config())
    exact.build()
    exact.set_weights(model.get_weights())
    pixels = rng.normal(size=(2, 9, 12, 3)).astype(np.float32)
    ids = np.array([[2, 9, 7, 3], [2, 5, 3, 0], [2, 3, 0, 0]])
    feeds = {
        "input_ids": ids,
        "attention_mask": (ids != 0).astype(np.int64),
        "pixel_values": pixels.transpose(0, 3, 1, 2),
    }
    got = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds)))
    image, text = exact.encode_image(pixels), exact.encode_text(ids)
    np.testing.assert_allclose(got["image_embeds"], image, atol=1e-5)
    np.testing.assert_allclose(got["text_embeds"], text, atol=1e-5)
    np.testing.assert_allclose(got["logits_per_text"], np.transpose(exact.similarities(image, text)), atol=1e-4)


def test_grey_images_and_normalized_ones(tokenizer, tmp_path, rng):
    grey = clip_of(tokenizer.vocab_size, channels=1)
    report = export_saved_model(grey, tmp_path / "clip")
    assert set(report.signatures) == {"encode_image", "encode_ids", "similarities", "serving_default"}
    graph, inputs, _ = clip.ClipPlan(grey, Given(), onnx=True).graphs()["vision_model.onnx"]
    assert inputs[0].axes == ("image_batch_size", 3, 9, 12)
    pixels = rng.normal(size=(2, 9, 12, 1)).astype(np.float32)
    three = tf.constant(np.repeat(pixels.transpose(0, 3, 1, 2), 3, axis=1))
    np.testing.assert_allclose(graph(three)[0], grey.encode_image(pixels), atol=1e-5)


def test_what_cannot_be_exported_is_one_line(tokenizer, tmp_path):
    model = clip_of(tokenizer.vocab_size)
    for options, message in (
        ({"beams": 3}, "beams= would have no effect|beams"),
        ({"input_signature": tf.TensorSpec([None], tf.int32)}, "input_signature"),
    ):
        with pytest.raises(UsageError, match=message):
            export_saved_model(model, tmp_path / "clip", **options)
        with pytest.raises(UsageError, match=message):
            export_onnx(model, tmp_path / "clip", **options)
    layers = [keras.Input((None, None, 3)), keras.layers.GlobalAveragePooling2D()]
    other = CLIP(keras.Sequential(layers), model.text_tower, projection_dim=P)
    other.build()
    with pytest.raises(UsageError, match="does not say what size its images have"):
        export_saved_model(other, tmp_path / "clip")
    assert not list(tmp_path.iterdir())
