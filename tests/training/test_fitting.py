"""What every run shares, with the smallest task: the order of things, names of scores, runs of earlier builds."""

import json
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.inference.folders import run_kind
from keras_attention.training.run.callbacks import Progress
from keras_attention.training.run.command_arguments import given_options, training_command
from keras_attention.training.run.fitting import fit_in_folder
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.run.run_options import RunOptions, option
from keras_attention.training.run.task import Task, TaskData
from keras_attention.training.run.training_state import CheckpointFolder
from keras_attention.training.run.validation import Validation

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
