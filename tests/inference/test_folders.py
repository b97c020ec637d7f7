"""What a path holds, and pieces that do not fit together: told in one line when a model is loaded."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_attention.inference.keras_models as keras_models
from keras_attention.errors import UsageError
from keras_attention.files import newest_version, read_json
from keras_attention.images import ImageTask
from keras_attention.inference import Classifier, TextGenerator, Translator
from keras_attention.inference.folders import find_model
from keras_attention.inference.keras_models import load_keras_model
from keras_attention.models import DecoderLM, Transformer, ViT
from keras_attention.text import SentencePieceTokenizer

TASK = ImageTask(labels=("a", "b", "c"), height=8, width=12, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)


def write_run(folder, model, config, tokenizer=None):
    folder.mkdir(parents=True)
    model.save(folder / "model.keras")
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        tokenizer.save(folder / "tokenizer.model")
    return folder


def vit(channels=3, num_classes=3):
    model = ViT((8, 12), 4, num_classes, channels=channels, d_model=8, num_layers=1, num_heads=2)
    model(np.zeros((1, 8, 12, channels), np.float32))
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(["one two three", "four five six", "seven eight"] * 4, vocab_size=24)


def translation_model(size):
    model = Transformer(size, size, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_length=9)
    model.build()
    return model


def test_newest_version_is_the_one_that_servers_take(tmp_path):
    """ASCII digits and folders alone: an Arabic digit and a plain file are no versions."""
    for name in ("1", "10", "9", "x", "٣٣", "²"):
        (tmp_path / name).mkdir()
    (tmp_path / "20").write_text("")
    assert newest_version(tmp_path) == tmp_path / "10"
    assert newest_version(tmp_path / "1") is None and newest_version(tmp_path / "20") is None
    assert find_model(tmp_path, None).path == tmp_path / "10"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe{}", b"[" * 200_000, b'{"a": ' * 100_000])
def test_json_that_is_none_is_one_line(tmp_path, content):
    """Case 113, brackets without end included."""
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"config\.json is damaged: it is not a JSON object\. Restore it"):
        read_json(tmp_path / "config.json")
    for load in (Translator.load, Classifier.load, TextGenerator.load):
        with pytest.raises(UsageError, match=r"config\.json is damaged"):
            load(tmp_path)


def test_a_file_that_cannot_be_read_is_not_missing(tmp_path, monkeypatch):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UsageError, match=r"config\.json cannot be read \(Is a directory\)"):
        read_json(tmp_path / "config.json")
    with pytest.raises(UsageError, match=r"nothing\.json does not exist"):
        read_json(tmp_path / "nothing.json")
    (tmp_path / "model.keras").write_bytes(b"PK")
    monkeypatch.setattr(keras_models.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=r"model\.keras cannot be read \(Permission denied\)"):
        load_keras_model(tmp_path / "model.keras")


def test_damaged_keras_files_are_damaged(tmp_path):
    """Case 112: never "not found"."""
    model = vit()
    model.save(tmp_path / "whole.keras")
    whole = (tmp_path / "whole.keras").read_bytes()
    for content in (b"", b"x", whole[: len(whole) // 2], whole[:-30]):
        (tmp_path / "model.keras").write_bytes(content)
        with pytest.raises(UsageError, match=r"model\.keras is damaged: it is empty, cut short, or no Keras model"):
            load_keras_model(tmp_path / "model.keras")
    middle = bytearray(whole)
    middle[len(whole) // 3 : len(whole) // 2] = os.urandom(len(whole) // 2 - len(whole) // 3)
    (tmp_path / "model.keras").write_bytes(middle)
    with pytest.raises(UsageError, match=r"model\.keras cannot be read as a Keras model \("):
        load_keras_model(tmp_path / "model.keras")


def test_weights_that_are_nan_are_named(tmp_path):
    """Case 111, in a run folder and in a SavedModel."""
    model = vit()
    model.trainable_variables[3].assign(model.trainable_variables[3] * np.nan)
    run = write_run(tmp_path / "run", model, {"images": TASK.as_dict()})
    with pytest.raises(UsageError, match=r"model\.keras has weights that are NaN \(.*: the training diverged"):
        Classifier.load(run)
    save_classify(tmp_path / "saved", 3, weight=np.nan)
    with pytest.raises(UsageError, match=r"saved has weights that are NaN"):
        Classifier.load(tmp_path / "saved")


def test_models_of_another_kind_name_both(tmp_path, tokenizer):
    """Cases 100 and 110: run folders of today and of before, Keras files and exports."""
    size = tokenizer.vocab_size
    language = DecoderLM(260, d_model=8, num_heads=2, num_layers=1)
    language.build()
    images, texts = write_run(tmp_path / "images", vit(), {"images": TASK.as_dict()}), translation_model(size)
    runs = {
        "a translation model": write_run(tmp_path / "texts", texts, {"options": {}}, tokenizer),
        "an image classifier": images,
        "a language model": write_run(tmp_path / "bytes", language, {"tokenizer": {"kind": "bytes"}}),
        "a CLIP model": write_run(tmp_path / "clip", texts, {"kind": "clip", "image_input": {}}, tokenizer),
        "a model of the kind 'segmenter'": write_run(tmp_path / "new", texts, {"kind": "segmenter"}),
    }
    commands = {
        Translator: ("a translation model", "translate"),
        Classifier: ("an image classifier", "classify"),
        TextGenerator: ("a language model", "generate"),
    }
    advice = dict(commands.values())
    for loader, (wanted, _) in commands.items():
        for held, run in runs.items():
            if held == wanted:
                loader.load(run)
                continue
            use = f"Use keras-attention {advice[held]}" if held in advice else "It has no command of its own"
            with pytest.raises(UsageError, match=rf"{run} holds {held}, not {wanted}\. {use}"):
                loader.load(run)
    with pytest.raises(UsageError, match=r"model\.keras holds a translation model, not a language model"):
        TextGenerator.load(runs["a translation model"] / "model.keras")
    with pytest.raises(UsageError, match=r"model\.keras is a model without its tokenizer\. Give the run folder"):
        Translator.load(runs["a translation model"] / "model.keras")
    with pytest.raises(UsageError, match=r"model\.keras is a model without the names of its classes"):
        Classifier.load(images / "model.keras")
    save_classify(tmp_path / "saved", 3)
    for loader in (Translator, TextGenerator):
        with pytest.raises(UsageError, match=r"saved holds an image classifier, not a .* Use keras-attention classify"):
            loader.load(tmp_path / "saved")
    write_run(tmp_path / "lies", texts, {"kind": "language", "tokenizer": {"kind": "bytes"}})
    with pytest.raises(UsageError, match=r"says that it holds a language model, but model\.keras holds another"):
        TextGenerator.load(tmp_path / "lies")


def test_a_tokenizer_of_another_model_is_refused(tmp_path, tokenizer):
    """Case 108."""
    run = write_run(tmp_path / "run", translation_model(tokenizer.vocab_size + 3), {}, tokenizer)
    message = f"has a tokenizer of {tokenizer.vocab_size} ids for a model of {tokenizer.vocab_size + 3}"
    with pytest.raises(UsageError, match=message):
        Translator.load(run)


def save_classify(folder, classes, *, weight=1.0, labels=TASK.labels):
    """A SavedModel with the signature of a classifier."""
    module = tf.Module()
    module.scale = tf.Variable(np.float32(weight))

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, None], tf.uint8, "images")])
    def classify(images):
        sums = tf.reduce_sum(tf.cast(images, tf.float32), axis=[1, 2])[:, :1] * module.scale
        return {"probabilities": tf.nn.softmax(tf.ensure_shape(sums * tf.ones([1, classes]), [None, classes]))}

    tf.saved_model.save(module, str(folder), signatures={"classify": classify})
    (folder / "assets.extra").mkdir()
    described = {"options": {"images": {**TASK.as_dict(), "labels": labels}}}
    (folder / "assets.extra" / "export.json").write_text(json.dumps(described))


def save_onnx(folder, classes):
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["logits"]),
    ]
    weight = np.random.default_rng(1).normal(size=(3, classes)).astype(np.float32)
    constants = {"axes": np.array([2, 3]), "weight": weight}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("pixel_values", kind, ["batch_size", 3, 8, 12])],
        [helper.make_tensor_value_info("logits", kind, ["batch_size", classes])],
        [onnx.numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    (folder / "export.json").write_text(json.dumps({"options": {"images": TASK.as_dict()}}))


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_labels_must_be_those_of_the_logits(tmp_path, rng, classes):
    """Case 109, in all three layouts."""
    write_run(tmp_path / "run", vit(num_classes=classes), {"images": TASK.as_dict()})
    save_classify(tmp_path / "saved", classes)
    save_onnx(tmp_path / "onnx", classes)
    image = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)
    for place in ("run", "saved", "onnx"):
        if classes == 3:
            answer = Classifier.load(tmp_path / place)([image])[0]
            assert answer.label in TASK.labels and abs(answer.probabilities.sum() - 1) < 1e-5
            continue
        with pytest.raises(
            UsageError, match=rf"names 3 labels for a model whose output has the shape \(.*, {classes}\)"
        ):
            Classifier.load(tmp_path / place)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 1, "mean": [0.5], "std": [0.2]}, "images of 8 x 12 x 1, which its model does not take"),
        ({"channels": True, "mean": [0.5], "std": [0.2]}, "channels must be 1"),
        ({"height": 10**9}, "at most 100,000,000 pixels. Got 1000000000 x 12"),
        ({"height": "8"}, "height must be a number of pixels. Got '8'"),
        ({"labels": "abc"}, "labels must be a list of names. Got 'abc'"),
        ({"labels": [1, 2, 3]}, "labels must be the names"),
        ({"mean": 5}, "does not describe images"),
        ({"mean": ["a", "b", "c"]}, "does not describe images"),
        ({"mean": [10**400] * 3}, "does not describe images"),
        ({"std": [1e-60] * 3}, "std must hold positive numbers"),
        ({"more": 1}, "does not describe images"),
    ],
    ids=str,
)
def test_images_of_json_are_checked(tmp_path, changes, message):
    """Case 113."""
    run = write_run(tmp_path / "run", vit(), {"images": {**TASK.as_dict(), **changes}})
    with pytest.raises(UsageError, match=message):
        Classifier.load(run)


@pytest.mark.parametrize("options", [None, [], "x", {}, {"images": 5}], ids=str)
def test_options_of_another_type_are_named(tmp_path, options):
    save_onnx(tmp_path / "onnx", 3)
    save_classify(tmp_path / "saved", 3)
    for file in (tmp_path / "onnx/export.json", tmp_path / "saved/assets.extra/export.json"):
        file.write_text(json.dumps({"options": options}))
        with pytest.raises(UsageError, match=r"export\.json (does not describe an image classifier|is damaged)"):
            Classifier.load(tmp_path / file.relative_to(tmp_path).parts[0])


def test_answers_that_are_nan_are_said():
    class Backend:
        task = TASK

        def probabilities(self, pixels):
            return np.full((len(pixels), 3), np.nan, np.float32)

    with pytest.raises(UsageError, match="answers are NaN: its weights are damaged"):
        Classifier(Backend())([np.zeros((8, 12, 3), np.uint8)])


def test_keras_messages_are_one_line(tmp_path):
    """Case 116: no colours of a terminal, no list of arguments."""

    class Loud(keras.Model):
        def call(self, x):
            raise ValueError("\x1b[1mbad\x1b[0m\nthing\nArguments received by Loud:\n  x=5")

    from keras_attention.errors import reason_of

    try:
        Loud()(np.zeros((1, 2)))
    except ValueError as error:
        assert reason_of(error).endswith("bad thing") and "Arguments" not in reason_of(error)
