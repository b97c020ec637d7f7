"""What every run shares, with the smallest task: the order of things, names of scores, runs of earlier builds."""

import errno
import json
import os
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.inference.folders import run_kind
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.language.options import LanguageOptions
from keras_attention.training.run.callbacks import Progress
from keras_attention.training.run.command_arguments import given_options, training_command
from keras_attention.training.run.fitting import fit_in_folder
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.run.run_options import RunOptions, memory_for_weights, option
from keras_attention.training.run.task import Task, TaskData
from keras_attention.training.run.training_state import CheckpointFolder
from keras_attention.training.run.validation import Validation
from keras_attention.training.translation.options import TranslationOptions
from keras_attention.training.vision.options import VisionOptions

OF_THE_MACHINE = {"train_seconds", "train_rate", "seconds", "peak_memory_mb"}


@dataclass(frozen=True)
class LineOptions(RunOptions):
    """Options of a run that fits a line."""

    points: int = option(12, "Points in a batch.", least=1)

    kind = "line"
    default_epochs = 3


class Points:
    """Batches of points on a line, the same in every epoch."""

    def __init__(self, count):
        x = np.linspace(-1, 1, 3 * count, dtype=np.float32)[:, None]
        self.batches = [(x[i::3], 2 * x[i::3] - 1) for i in range(3)]

    def __len__(self):
        return len(self.batches)

    def dataset(self, epoch, step):
        # Every iteration is one epoch, the first from `step` on.
        starts = [step]

        def batches():
            yield from self.batches[starts.pop() if starts else 0 :]

        shape = tf.TensorSpec([None, 1])
        return tf.data.Dataset.from_generator(batches, output_signature=(shape, shape))


class LineTask(Task):
    """A line, y = a x + b."""

    counted = "points"

    def read(self, folder):
        return TaskData(batches=Points(self.options.points), fingerprint="f", origin="a line", sizes={"train": 3})

    def build(self, data):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        metrics = [keras.metrics.MeanSquaredError(name="loss")]
        model.compile(keras.optimizers.SGD(0.1), loss="mse", metrics=metrics)
        model.optimizer.build(model.trainable_variables)
        return model, metrics

    def validation(self, data, model, best_path):
        return Validation(model, best_path, lambda epoch, last: {"loss": self.loss(model), "slope": -epoch}, "slope")

    def score(self, data, model, folder, kept):
        folder.write_json(folder.path / "kept.json", kept)
        return {"validation": {"loss": self.loss(model)}, "test": {"slope": model.get_weights()[0].item()}}

    def loss(self, model):
        return float(np.mean([(model(x) - y) ** 2 for x, y in Points(self.options.points).batches]))


def train(options):
    return fit_in_folder(LineTask(options))


def options(out, **changes):
    return LineOptions(out=str(out), tensorboard=False, **changes)


def test_a_task_of_a_users_own_is_fitted_scored_and_kept(tmp_path):
    metrics = train(options(tmp_path / "run"))
    folder = RunFolder(tmp_path / "run")
    assert folder.read_metrics() == metrics
    assert set(metrics) == {"validation/loss", "test/slope", "steps", "epochs", "parameters"} | OF_THE_MACHINE
    assert (metrics["steps"], metrics["epochs"], metrics["parameters"]) == (9, 3, 2)
    history = folder.read_history()
    assert [record["points"] for record in history] == [36, 36, 36]
    assert metrics["train_rate"] == pytest.approx(3 * 36 / metrics["train_seconds"])
    config = folder.read_config()
    assert config["kind"] == "line" and config["counted"] == "points"
    assert config["data"] == {"origin": "a line", "train": 3, "fingerprint": "f"}
    # The first epoch was judged the best: its weights, and its loss, are those of the kept model.
    kept = json.loads((tmp_path / "run" / "kept.json").read_text())
    assert kept["epoch"] == 1 and metrics["validation/loss"] == pytest.approx(history[0]["val_loss"])
    assert folder.load_model().get_weights()[0].item() == pytest.approx(metrics["test/slope"])


def test_a_run_of_an_earlier_build_goes_on(tmp_path):
    """Its records have val_BLEU and val_chrF, and its config.json no kind."""
    train(options(tmp_path / "run", epochs=1))
    folder = RunFolder(tmp_path / "run")
    checkpoints = CheckpointFolder(folder.checkpoints_path)
    groups, info = checkpoints.load_newest()
    # As good as nothing can be: the best of before must stay the best, by its old name.
    info["best"] = {"epoch": 1, "steps": info["best"]["steps"], "val_loss": 0.1, "val_SLOPE": 99.0}
    info["history"] = [{**record, "val_BLEU": 1.5} for record in info["history"]]
    checkpoints.save(info["steps"], groups, info)
    config = folder.read_config()
    del config["counted"]
    folder.write_json(folder.config_path, config)
    metrics = train(options(tmp_path / "run", epochs=2, resume=True))
    assert metrics["steps"] == 6
    assert json.loads((tmp_path / "run" / "kept.json").read_text())["val_slope"] == 99
    assert [sorted(record) == sorted({**record, "val_bleu": 0}) for record in folder.read_history()] == [True, False]
    assert Progress.restored({"best": None, "unknown": 1}) == Progress()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"kind": "clip", "images": {}}, "clip"),
        ({"images": {}}, "image-classifier"),
        ({"image_input": {}, "groups": []}, "clip"),
        ({"tokenizer": {"kind": "bytes"}}, "language"),
        ({"options": {}}, "translation"),
    ],
    ids=str,
)
def test_the_kind_of_a_run_is_stated_or_told_by_what_it_holds(config, kind):
    assert run_kind(config) == kind


def test_a_run_of_another_kind_is_not_resumed(tmp_path, capsys):
    """Case 110."""
    folder = RunFolder(tmp_path)
    folder.write_json(folder.config_path, {"options": {}})
    with pytest.raises(UsageError, match="of the kind translation, and this command trains the kind line"):
        given_options(LineOptions, {"out": str(tmp_path), "resume": True})
    main = training_command(LineOptions, train, "Fit a line.")[1]
    with pytest.raises(SystemExit) as end:
        main(["--resume", "--out", str(tmp_path)])
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1 and "the kind translation" in lines[0]


# ---- limits of the machine and damaged files ---------------------------------------------------------------------


def refused(capsys, train, *words):
    """The one line by which a command refuses."""
    with pytest.raises(SystemExit) as end:
        training_command(LineOptions, train, "Fit a line.")[1](["--no-tensorboard", *words])
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1
    return lines[0]


class Fails:
    """A function that raises an error at its nth call, and otherwise does what it did."""

    def __init__(self, function, call, error):
        self.function, self.left, self.error = function, call, error

    def __call__(self, *given, **named):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.function(*given, **named)


@pytest.mark.parametrize("call", [1, 3, 6, 12, 16])
@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded", "x"), OSError("?")],
    ids=["no name", "quota, with a name", "no number"],
)
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch, capsys, call, error):
    """Case 107: whichever file of the run it is."""
    whole, out = train(options(tmp_path / "whole")), str(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", Fails(os.fsync, call, error))
        line = refused(capsys, train, "--out", out)
    begun = (tmp_path / "run" / "config.json").exists()
    further = "continue with --resume" if begun else "start again"
    assert f"{out} cannot be written (" in line and line.endswith(f"). Free space, then {further}.")
    assert not list((tmp_path / "run").glob(".*.tmp*")) if begun else not (tmp_path / "run").exists()
    metrics = train(options(out, resume=begun))
    for name in OF_THE_MACHINE:
        del whole[name], metrics[name]
    assert metrics == whole


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 5.00 TiB"), "there is not enough memory (Unable to allocate 5.00 TiB)"),
        (
            tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"),
            "there is not enough memory (OOM",
        ),
        (
            tf.errors.ResourceExhaustedError(None, None, "x.v2; No space left on device"),
            "run cannot be written (No space left on device). Free space, then continue with --resume.",
        ),
    ],
    ids=["memory", "memory of a device", "disk"],
)
def test_what_the_machine_lacks_is_one_line(tmp_path, capsys, error, said):
    """Cases 107 and 114."""

    class Greedy(LineTask):
        def score(self, *given):
            raise error

    assert said in refused(capsys, lambda options: fit_in_folder(Greedy(options)), "--out", str(tmp_path / "run"))


def test_an_error_of_a_users_own_file_keeps_its_name(tmp_path, capsys):
    class Reads(LineTask):
        def read(self, folder):
            (tmp_path / "data").read_bytes()

    line = refused(capsys, lambda options: fit_in_folder(Reads(options)), "--out", str(tmp_path / "run"))
    assert f"{tmp_path / 'data'} cannot be used (No such file or directory)" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ([], "`options` must be an object"),
        (None, "`options` must be an object"),
        ({"epochs": "abc"}, "--epochs must be a whole number. Got 'abc'."),
        ({"epochs": 2.5}, "--epochs must be a whole number. Got 2.5."),
        ({"points": True}, "--points must be a whole number. Got True."),
        ({"points": None}, "--points must be a whole number. Got None."),
        ({"precision": 5}, "--precision must be text. Got 5."),
        ({"tensorboard": "no"}, "--tensorboard must be true or false. Got 'no'."),
        ({"minutes": [1]}, "--minutes must be a number. Got [1]."),
        ({"points": 10**400}, "--points must be"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_stored_options_of_another_type_are_one_line(tmp_path, capsys, stored, said):
    """Case 113."""
    folder = RunFolder(tmp_path)
    folder.write_json(folder.config_path, {"kind": "line", "options": stored})
    assert said in refused(capsys, train, "--resume", "--out", str(tmp_path))


@pytest.mark.parametrize(
    "info",
    [
        {"steps": "abc"},
        {"epoch": 1.5},
        {"seconds": "x"},
        {"history": {}},
        {"history": [3]},
        {"best": 7},
        {"step": None},
    ],
    ids=str,
)
def test_a_checkpoint_of_other_types_is_one_line(tmp_path, capsys, info):
    """Case 113."""
    train(options(tmp_path / "run", epochs=1))
    checkpoints = CheckpointFolder(tmp_path / "run" / "checkpoints")
    groups, known = checkpoints.load_newest()
    for path in checkpoints.regular():
        path.unlink()
    checkpoints.save(known["steps"], groups, {**known, **info})
    line = refused(capsys, train, "--resume", "--epochs", "2", "--out", str(tmp_path / "run"))
    assert f"{next(iter(info))} is not what training writes" in line


def test_what_is_beyond_the_machine_is_said_before_it_is_taken(tmp_path, capsys):
    """Case 114."""

    @dataclass(frozen=True)
    class Wide(LineOptions):
        def least_memory(self):
            return memory_for_weights(1000, 10**6, other=5)

    assert memory_for_weights(3, 10, 7, other=5) == 16 * (3 * (4 * 100 + 2 * 70) + 5)
    with pytest.raises(UsageError, match=r"takes at least 192,000,000 GB of memory for its weights.* has [1-9]"):
        train(Wide(out=str(tmp_path / "run"), tensorboard=False))
    assert list(tmp_path.iterdir()) == []
    for kind in (TranslationOptions, VisionOptions, ClipOptions, LanguageOptions):
        needed = {"data": ["x"] if kind is LanguageOptions else "x", "captions": "x"}
        given = {name: value for name, value in needed.items() if name in kind.__dataclass_fields__}
        with pytest.raises(UsageError, match=r"--layers must be at most 1,000. Got 100,000,000."):
            kind(out="x", layers=10**8, **given)
        with pytest.raises(UsageError, match=r"--d-model must be at most 1,048,576. Got 100,000,000."):
            kind(out="x", d_model=10**8, **given)
        assert kind(out="x", layers=900, d_model=10**6, **given).least_memory() > 10**14 or kind is ClipOptions
