"""Classifiers of images, exported: run folder, SavedModel and ONNX answer alike, and preprocessing is in the graph."""

import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_attention.cli import main
from keras_attention.errors import UsageError, printable
from keras_attention.export import export_onnx, export_saved_model
from keras_attention.images import Classifier, ImageTask
from keras_attention.models import HybridViT, SwinTransformer, ViT

GREY = ImageTask(labels=("nought", "one", "two", "three"), height=6, width=8, channels=1, mean=(0.4,), std=(0.3,))
COLOUR = ImageTask(
    labels=("kitten\tor\ncat", "Größe", "dog"),
    height=8,
    width=8,
    channels=3,
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.3, 0.25),
)


def random_weights(model, rng):
    """Larger than initial ones, so that the images matter for the labels."""
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(0, 0.3, variable.shape).astype(np.float32))
    return model


def write_run(folder, model, task):
    folder.mkdir()
    model.save(folder / "model.keras")
    (folder / "config.json").write_text(json.dumps({"images": task.as_dict()}), encoding="utf-8")
    return folder


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run folder of a grey ViT and of a colour Swin, and the exports that the command makes of them."""
    rng, base = np.random.default_rng(8), tmp_path_factory.mktemp("places")
    grey = ViT((6, 8), 2, 4, d_model=8, num_layers=1, num_heads=2, channels=1)
    colour = SwinTransformer(8, 2, 3, window_size=2, d_model=8, depths=(1, 1), num_heads=(1, 2))
    found = {}
    for name, model, task in (("grey", grey, GREY), ("colour", colour, COLOUR)):
        model(np.zeros((1, task.height, task.width, task.channels), np.float32))
        folder = write_run(base / name, random_weights(model, rng), task)
        assert run("export", "saved-model", folder, base / f"{name}-saved") == 0
        assert run("export", "onnx", folder, base / f"{name}-onnx") == 0
        found[name] = (folder, base / f"{name}-saved", base / f"{name}-onnx")
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Image files of many kinds, by name."""
    rng, folder = np.random.default_rng(9), tmp_path_factory.mktemp("files")
    exif = Image.Exif()
    exif[0x0112] = 6
    for i, size in enumerate([(8, 6), (30, 20), (1, 1), (700, 3), (11, 50)]):
        coarse = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
        picture = coarse.resize(size, Image.Resampling.BICUBIC)
        picture.save(folder / f"{i}.png")
        picture.convert("L").save(folder / f"{i}-grey.bmp")
        picture.convert("CMYK").save(folder / f"{i}-cmyk.jpg")
        picture.convert("P").save(folder / f"{i}.gif")
        picture.putalpha(Image.fromarray(rng.integers(0, 256, size[::-1], dtype=np.uint8)))
        picture.save(folder / f"{i}-alpha.png", exif=exif)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("name", ["grey", "colour"])
def test_all_places_answer_alike(places, files, name, capsys):
    printed = []
    for place in places[name]:
        assert run("classify", "--model", place, "--top", 2, *files) == 0
        printed.append([line.split("\t") for line in capsys.readouterr().out.splitlines()])
    task = {"grey": GREY, "colour": COLOUR}[name]
    assert [line[0] for line in printed[0]] == [str(file) for file in files]
    assert len({line[2] for line in printed[0]}) > 10, "an image must matter"
    for other in printed[1:]:
        for a, b in zip(printed[0], other, strict=True):
            assert a[1] == b[1] and {a[1], a[3]} < {printable(label) for label in task.labels}
            np.testing.assert_allclose([float(a[2]), float(a[4])], [float(b[2]), float(b[4])], atol=2e-4)


def test_bad_files_are_left_out_and_said(places, files, tmp_path, capsys):
    (tmp_path / "cut.png").write_bytes(files[0].read_bytes()[:40])
    (tmp_path / "text.png").write_text("hello", encoding="utf-8")
    shutil.copy(files[-1], tmp_path / "wrong_name.jpg")
    given = [tmp_path / "cut.png", files[0], tmp_path / "missing.png", tmp_path / "text.png"]
    given += [tmp_path / "wrong_name.jpg", *files[1:] * 2]
    given.append(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")))  # no UTF-8, and printed in the last place
    shutil.copy(files[0], given[-1])
    assert run("classify", "--model", places["grey"][0], *given) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].split("\t")[0] == f"{tmp_path}/caf?.png"
    given[-1] = f"{tmp_path}/caf?.png"
    names = [line.split("\t")[0] for line in out.splitlines()]
    bad = [str(tmp_path / name) for name in ("cut.png", "missing.png", "text.png")]
    assert names == [str(path) for path in given if str(path) not in bad]
    lines = err.strip().splitlines()
    assert len(lines) == 4 and all(line.startswith("keras-attention: ") for line in lines)
    assert [next(name for name in bad if name in line) for line in lines[:3]] == bad
    assert lines[3].endswith(f"3 of {len(given)} files could not be classified")


def test_a_model_that_is_none_is_named(places, tmp_path, files, capsys):
    def refused(place):
        capsys.readouterr()
        assert run("classify", "--model", place, files[0]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0]

    assert "nowhere does not exist" in refused(tmp_path / "nowhere")
    assert "holds no model. Expected an image classifier" in refused(tmp_path)
    grey, saved, onnx = places["grey"]
    for place, piece in (
        (grey, "config.json"),
        (grey, "model.keras"),
        (saved / "1", "saved_model.pb"),
        (onnx, "model.onnx"),
    ):
        folder = tmp_path / f"{place.parent.name}-{piece}"
        shutil.copytree(place, folder)
        whole = (folder / piece).read_bytes()
        (folder / piece).write_bytes(whole[: len(whole) // 2])
        assert str(folder) in refused(folder)
    translator = tmp_path / "translator"
    write_run(translator, keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), GREY)
    (translator / "config.json").write_text("{}", encoding="utf-8")
    assert "holds a translation model, not an image classifier" in refused(translator)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["grey", "colour"])
def test_the_graph_prepares_tensors_as_the_command_does(places, rng, tmp_path, name, channels):
    run_folder, saved, _ = places[name]
    classifier, served = Classifier.load(run_folder), tf.saved_model.load(str(saved / "1")).signatures
    coarse = rng.integers(0, 256, (3, 5, 4, channels), dtype=np.uint8)
    images = np.asarray(tf.cast(tf.image.resize(coarse, (23, 31)), tf.uint8))
    got = served["serving_default"](images=tf.constant(images))
    mode = ("L", "LA", "RGB", "RGBA")[channels - 1]
    for i, image in enumerate(images):
        file = tmp_path / "a.png"
        Image.frombytes(mode, image.shape[1::-1], image.tobytes()).save(file)
        want = classifier([file])[0]
        # Both round to whole levels on the way, in places of their own.
        np.testing.assert_allclose(got["probabilities"][i], want.probabilities, atol=0.05)
        encoded = served["classify_bytes"](image_bytes=tf.constant([file.read_bytes()]))
        np.testing.assert_allclose(encoded["probabilities"][0], got["probabilities"][i], atol=1e-4)
    best = np.argmax(got["probabilities"], axis=1)
    assert got["label_ids"].numpy().tolist() == best.tolist()
    assert [label.decode() for label in got["labels"].numpy()] == [classifier.task.labels[i] for i in best]


def test_the_graph_decodes_what_it_says(places, rng):
    served = tf.saved_model.load(str(places["colour"][1] / "1")).signatures["classify_bytes"]
    coarse = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    picture = coarse.resize((40, 30), Image.Resampling.BICUBIC)
    contents = []
    for kind, options in (("PNG", {}), ("BMP", {}), ("JPEG", {"quality": 100, "subsampling": 0}), ("GIF", {})):
        file = io.BytesIO()
        (picture.quantize(256) if kind == "GIF" else picture).save(file, kind, **options)
        contents.append(file.getvalue())
    probabilities = served(image_bytes=tf.constant(contents))["probabilities"].numpy()
    for other in probabilities[1:]:
        np.testing.assert_allclose(other, probabilities[0], atol=0.05)
    described = json.loads((places["colour"][1] / "1/assets.extra/export.json").read_text(encoding="utf-8"))
    assert described["options"]["decodes"] == ["JPEG", "PNG", "BMP", "GIF (first frame)"]
    assert described["signatures"]["classify"]["inputs"] == {"images": {"dtype": "uint8", "shape": [None] * 4}}


def test_the_onnx_folder_has_what_clients_ask_for(places):
    config, processor = (
        json.loads((places["grey"][2] / name).read_text(encoding="utf-8"))
        for name in ("config.json", "preprocessor_config.json")
    )
    assert config["id2label"] == {"0": "nought", "1": "one", "2": "two", "3": "three"}
    assert config["num_channels"] == 3 and config["hidden_size"] == 8 and config["image_size"] == [6, 8]
    assert processor["size"] == {"height": 6, "width": 8} and processor["image_mean"] == [0.4] * 3


def test_other_models_and_refusals(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    hybrid = HybridViT(8, 2, 3, d_model=8, num_conv_layers=2, num_layers=1, num_heads=2)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    own = keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Dense(3, dtype="float32")])
    for number, model in enumerate((hybrid, own)):
        model(np.zeros((1, 8, 8, 3), np.float32))
        assert export_onnx(model, tmp_path / f"onnx{number}", images=COLOUR).largest_difference < 0.05
    own.save(tmp_path / "own.keras")
    keras.config.set_dtype_policy("float32")
    loaded = keras.models.load_model(tmp_path / "own.keras")  # which says float32, while its layers are in float16
    report = export_onnx(loaded, tmp_path / "loaded", images=COLOUR)
    assert report.largest_difference < 1e-4
    keras.config.set_dtype_policy("mixed_float16")
    assert export_saved_model(own, tmp_path / "saved", images=COLOUR).signatures == (
        "classify",
        "classify_bytes",
        "serving_default",
    )
    for export in (export_onnx, export_saved_model):
        with pytest.raises(UsageError, match="one logit for each of the 2 labels"):
            export(own, tmp_path / "bad", images=ImageTask(**{**COLOUR.as_dict(), "labels": ("a", "b")}))
        with pytest.raises(UsageError, match="does not take images of 6 x 8 x 1"):
            export(own, tmp_path / "bad", images=GREY)
        with pytest.raises(UsageError, match="beams= would have no effect"):
            export(own, tmp_path / "bad", images=COLOUR, beams=2)
    assert not (tmp_path / "bad").exists()
    for changes, message in (
        ({"labels": ()}, "labels must be"),
        ({"channels": 2}, "channels must be 1"),
        ({"height": 0}, "height must be"),
        ({"mean": (0.5,)}, "mean must hold 3 numbers"),
        ({"std": (0.5, 0.0, 0.5)}, "std must hold positive"),
    ):
        with pytest.raises(UsageError, match=message):
            ImageTask(**{**COLOUR.as_dict(), **changes})


OPTIMUM = """
import json, sys
import numpy as np
from PIL import Image
from optimum.onnxruntime import ORTModelForImageClassification
from transformers import AutoImageProcessor
folder, *files = sys.argv[1:]
processor = AutoImageProcessor.from_pretrained(folder, use_fast=False)
model = ORTModelForImageClassification.from_pretrained(folder)
for file in files:
    inputs = processor(images=Image.open(file).convert("RGB"), return_tensors="np")
    logits = np.asarray(model(**inputs).logits)[0]
    print(json.dumps([model.config.id2label[int(logits.argmax())], logits.tolist()]))
"""


def test_optimum_loads_the_folder_unmodified(places, files):
    environment = Path(__file__).parents[2] / ".venv-optimum"
    if not list(environment.glob(".ready*")):
        pytest.skip("no .venv-optimum: benchmarks/peers/setup_optimum.sh makes it")
    # Where a photograph is turned or transparent, the client's own reading differs from the command's; sides of one or
    # three pixels it takes for channels.
    plain = [file for file in files if file.name in ("0.png", "1.png", "4.png")]
    for name in ("grey", "colour"):
        run_folder, _, onnx = places[name]
        child = subprocess.run(
            [environment / "bin/python", "-c", OPTIMUM, onnx, *plain],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert child.returncode == 0, child.stderr[-2000:]
        classifier = Classifier.load(run_folder)
        for line, answer in zip(child.stdout.splitlines(), classifier(plain), strict=True):
            label, logits = json.loads(line)
            exponentials = np.exp(np.array(logits) - max(logits))
            # Grey models take the luma before the client's resizing here, after it there.
            np.testing.assert_allclose(
                exponentials / exponentials.sum(), answer.probabilities, atol=1e-4 if name == "colour" else 0.05
            )
            assert name == "grey" or label == answer.label
