"""Training a classifier of images: the command, its folder, and what keeps a run honest."""

import json
import math
import os
import signal

import keras
import numpy as np
import pytest
from PIL import Image

from keras_attention.errors import UsageError
from keras_attention.images import ImageTask
from keras_attention.models import ViT
from keras_attention.training.optimization.cosine import warmup_cosine
from keras_attention.training.optimization.weight_averages import moving_average
from keras_attention.training.optimization.weight_decay import without_decay
from keras_attention.training.run.callbacks import Budget, Progress
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.vision import program
from keras_attention.training.vision.classifiers import build_model
from keras_attention.training.vision.confusion import confusion_matrix, draw_confusion
from keras_attention.training.vision.image_data import split_images
from keras_attention.training.vision.image_sources import read_source
from keras_attention.training.vision.options import VisionOptions
from keras_attention.training.vision.task import measured, train

STEPS_PER_EPOCH = 4

# Numbers of metrics.json that differ from one run to the next.
OF_THE_MACHINE = {"train_seconds", "train_rate", "seconds", "peak_memory_mb"}


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """Sixty noisy images of 6 x 6: upright stripes, lying ones, and none."""
    rng = np.random.default_rng(4)
    labels = np.arange(60) % 3
    upright = np.tile([30, 220], (6, 3))
    kinds = np.stack([upright, upright.T, np.full((6, 6), 120)])[labels]
    images = np.clip(kinds + rng.normal(0, 25, kinds.shape), 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("stripes") / "stripes.npz"
    np.savez(path, images=images, labels=np.array(["upright", "lying", "none"])[labels])
    return path


def options(data, out, **changes):
    tiny = {
        "patch_size": 2,
        "d_model": 8,
        "heads": 2,
        "layers": 1,
        "batch_size": 10,
        "epochs": 3,
        "warmup": 2,
        "learning_rate": 0.02,
        "ema": 0.5,
        "checkpoint_every": 3,
        "augment": "shift",
        "validate_every": 1,
        "tensorboard": False,
    }
    return VisionOptions(out=str(out), data=str(data), **{**tiny, **changes})


class Interrupt(keras.callbacks.Callback):
    """Ctrl-C before one step of the run."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def finished(stripes, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, train(options(stripes, out))


def test_a_run_learns_and_leaves_every_piece(finished, stripes):
    out, metrics = finished
    folder = RunFolder(out)
    assert folder.read_metrics() == metrics
    assert metrics["steps"] == 3 * STEPS_PER_EPOCH and 0 <= metrics["test/accuracy"] <= 1
    history = folder.read_history()
    # Among three classes the true one is always one of the first five (case 105).
    assert not any("top5" in name for name in {*metrics, *history[0]})
    assert history[-1]["loss"] < history[0]["loss"] and history[0]["images"] == 10 * STEPS_PER_EPOCH
    config = folder.read_config()
    assert config["images"]["labels"] == ["lying", "none", "upright"]
    assert config["data"] | {"fingerprint": ""} == {
        "origin": "stripes.npz",
        "train": 42,
        "validation": 6,
        "test": 12,
        "fingerprint": "",
    }
    # The saved model has the weights of the best validation, which are those averaged over the steps.
    best = max(history, key=lambda record: (record["val_accuracy"], -record["val_loss"]))
    data = split_images(read_source(str(stripes)), validation=0.1, test=0.2)
    split = data.splits["validation"]
    logits = np.asarray(folder.load_model()(data.task.normalized(split.images)))
    assert measured(logits, split.labels)["accuracy"] == pytest.approx(best["val_accuracy"])
    assert measured(logits, split.labels)["loss"] == pytest.approx(metrics["validation/loss"], rel=1e-4)
    confusion = json.loads((out / "confusion_matrix.json").read_text(encoding="utf-8"))
    counts = np.array(confusion["counts"])
    assert counts.sum(axis=1).tolist() == [4, 4, 4]
    assert np.trace(counts) / 12 == pytest.approx(metrics["test/accuracy"])
    with Image.open(out / "confusion_matrix.png") as picture:
        assert picture.format == "PNG"


def test_an_interrupted_run_equals_an_undisturbed_one(finished, stripes, tmp_path, capsys):
    out, metrics = finished
    chosen = options(stripes, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(chosen, callbacks=[Interrupt(6)])
    with pytest.raises(UsageError, match=r"--epochs \(was 3, is 4\), --ema \(was 0.5, is 0.9\)"):
        train(VisionOptions.resumed(chosen.as_dict(), {"out": chosen.out, "epochs": 4, "ema": 0.9}))
    resumed = train(VisionOptions.resumed(chosen.as_dict(), {"out": chosen.out}))
    assert "continuing after step 7" in capsys.readouterr().out
    for a, b in zip(RunFolder(out).load_model().variables, RunFolder(chosen.out).load_model().variables, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name in metrics:
        assert name in OF_THE_MACHINE or resumed[name] == pytest.approx(metrics[name], rel=1e-5), name


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "cnn", "patch_size": None, "heads": None, "layers": 3, "ema": 0.0},
        {
            "precision": "mixed_float16",
            "augment": "mixup,cutmix",
            "pooling": "token",
            "validation_share": 0.0,
            "validate_every": None,
        },
    ],
    ids=["cnn", "half precision, mixed images, no validation"],
)
def test_other_models_and_precisions(stripes, tmp_path, changes):
    metrics = train(options(stripes, tmp_path / "run", epochs=None, steps=2, **changes))
    assert metrics["steps"] == 2 and 0 <= metrics["test/accuracy"] <= 1
    assert ("validation/accuracy" in metrics) == ("validation_share" not in changes)
    model = RunFolder(tmp_path / "run").load_model()
    assert model(np.zeros((2, 6, 6, 1), np.float32)).dtype == "float32"


def test_a_limit_of_minutes_ends_the_cosine_in_time():
    budget = Budget(epochs=10, minutes=2)
    assert budget.share(Progress(epoch=2, step=3, steps=15, seconds=6), 6) == pytest.approx(15 / 60)
    assert budget.share(Progress(epoch=2, step=3, steps=15, seconds=90), 6) == pytest.approx(0.75)
    assert budget.share(Progress(seconds=500), 6) == 1 and Budget().share(Progress(steps=5), 6) == 0
    for step, share in ((0, 0.0), (3, 0.2), (9, 1.0)):
        want = 0.1 * min(1, (step + 1) / 4) * (1 + math.cos(math.pi * share)) / 2
        assert warmup_cosine(0.1, step, 4, share) == pytest.approx(want)
    assert warmup_cosine(0.1, 0, 0, 0) == 0.1


def test_what_decays_and_what_does_not():
    model = ViT((4, 4), 2, 3, d_model=8, num_layers=1, num_heads=2, channels=1, layer_scale=0.1)
    model(np.zeros((1, 4, 4, 1), np.float32))
    kept = {variable.path for variable in without_decay(model)}
    decayed = {variable.path for variable in model.trainable_variables} - kept
    assert decayed and all(path.endswith("kernel") for path in decayed)
    assert any("class_token" in path for path in kept) and any("position" in path for path in kept)


def test_the_moving_average_is_lent_and_given_back():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.75), loss="mse")
    x, y = np.array([[1.0, 2.0]]), np.array([[3.0]])
    averages = None
    for _ in range(3):
        model.train_on_batch(x, y)
        now = [np.array(v) for v in model.trainable_variables]
        averages = now if averages is None else [0.75 * a + 0.25 * b for a, b in zip(averages, now)]
    with moving_average(model):
        for variable, want in zip(model.trainable_variables, averages):
            np.testing.assert_allclose(variable, want, rtol=1e-5)
    for variable, want in zip(model.trainable_variables, now):
        np.testing.assert_array_equal(variable, want)


def test_measures_against_loops(rng, tmp_path):
    logits, labels = rng.normal(size=(40, 7)).astype(np.float32), rng.integers(0, 7, 40).astype(np.int32)
    want = {"accuracy": 0, "top5_accuracy": 0, "loss": 0}
    counts = np.zeros((7, 7), int)
    for row, label in zip(logits.astype(np.float64), labels):
        order = sorted(range(7), key=lambda c: -row[c])
        want["accuracy"] += order[0] == label
        want["top5_accuracy"] += label in order[:5]
        want["loss"] -= row[label] - math.log(sum(math.exp(value) for value in row))
        counts[label][order[0]] += 1
    assert measured(logits, labels) == pytest.approx({name: value / 40 for name, value in want.items()}, rel=1e-5)
    assert set(measured(logits[:, :5], labels % 5)) == {"accuracy", "loss"}
    assert measured(np.zeros_like(logits), labels)["accuracy"] == 0
    diverged = measured(np.full_like(logits, np.nan), labels)
    assert diverged["accuracy"] == diverged["top5_accuracy"] == 0 and np.isnan(diverged["loss"])
    np.testing.assert_array_equal(confusion_matrix(labels, logits.argmax(axis=1), 7), counts)
    for count in (7, 70):
        draw_confusion(np.eye(count, dtype=int), [f"class {i}" for i in range(count)], tmp_path / f"{count}.png")
    with Image.open(tmp_path / "70.png") as picture:
        colours = np.asarray(picture)
    # Of many classes the picture has cells only: dark on the diagonal, white elsewhere.
    assert (colours == (8, 48, 107)).all(axis=-1).sum() == 70 * 17 * 17


def test_bad_options_are_one_line(tmp_path, stripes, capsys):
    def refused(*words):
        with pytest.raises(SystemExit) as ended:
            program.main(["--out", str(tmp_path / "run"), "--data", str(stripes), "--no-tensorboard", *words])
        lines = capsys.readouterr().err.strip().splitlines()
        assert ended.value.code == 2 and len(lines) == 1 and not (tmp_path / "run").exists()
        return lines[0]

    assert "--model must be one of vit" in refused("--model", "resnet")
    assert "Got 'twirl'" in refused("--augment", "flip,twirl")
    assert "--patch-size would have no effect" in refused("--model", "cnn", "--patch-size", "2")
    assert "--patch-size 7 is larger than the images, 6 x 6. Give at most 6" in refused("--patch-size", "7")
    assert "Got 10 and 3" in refused("--d-model", "10", "--heads", "3")
    assert "Got 64 and 3" in refused("--heads", "3")
    assert "Unknown mechanism 'nearby'" in refused("--mechanism", "nearby")
    with pytest.raises(UsageError, match="--test-share would have no effect"):
        VisionOptions(out="x", test_share=0.3)


@pytest.mark.parametrize(
    ("name", "height", "width", "channels"),
    [("hybrid", 28, 28, 1), ("swin", 8, 8, 1), ("swin", 28, 21, 3), ("vit", 17, 20, 3)],
)
def test_every_model_is_built_for_the_images_by_default(name, height, width, channels):
    numbers = {"mean": (0.5,) * channels, "std": (0.5,) * channels}
    task = ImageTask(labels=("a", "b", "c"), height=height, width=width, channels=channels, **numbers)
    chosen = VisionOptions(out="x", model=name).chosen(size=max(height, width), folder=False)
    model = build_model(name, chosen, task)
    assert model(np.zeros((2, height, width, channels), np.float32)).shape == (2, 3)
    assert chosen["d_model"] == (64 if height <= 16 else 128)
    if name == "swin":
        # The last stage has the width that was asked for.
        assert model.feature_width == chosen["d_model"] and sum(model.depths) == chosen["layers"]
