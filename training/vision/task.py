"""Training a classifier of images: from labelled images to a run folder that holds a finished model.

    python -m keras_attention.training.vision --data digits --out runs/digits

and the same from Python: `train(VisionOptions(out="runs/digits"))`.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.training.run.averaged_run import AveragedRun, AveragedValidation
from keras_attention.training.run.command_arguments import run_alone, typer_command
from keras_attention.training.run.model_run import given_options, print_metrics, run_in_folder
from keras_attention.training.run.run_folder import write_atomically
from keras_attention.training.vision.augmentation import Augmentation, parse
from keras_attention.training.vision.classifiers import build_model
from keras_attention.training.vision.confusion import confusion_matrix, draw_confusion
from keras_attention.training.vision.image_data import SPLITS, ImageBatches, border, evaluation_dataset, split_images
from keras_attention.training.vision.image_sources import read_source
from keras_attention.training.vision.options import VisionOptions
from keras_attention.training.vision.retrieval import places

# Between two validations by default, where epochs are shorter: a look at a few images costs as much as many steps.
VALIDATION_STEPS = 100


def train(options, *, callbacks=()):
    """Train a classifier of images and leave it in a run folder.

    The model with the best accuracy on the validation images is kept (of equals the one with the lower loss); the test
    images are looked at once, after that. With equal options and data the weights are the same in every run on one
    machine, however often a run was interrupted and resumed; under a limit of minutes the number of steps varies.

    Beside what every run folder holds there are confusion_matrix.png and confusion_matrix.json of the test images, and
    under "images" in config.json the `ImageTask`: labels, size, channels, mean and deviation.

    Args:
        options: `VisionOptions`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict, the content of metrics.json: "test_accuracy", "test_top5_accuracy", "test_loss" (without label
        smoothing), the same for "validation_", "train_seconds" (training steps alone), "images_per_second" (in that
        time), "seconds" (with validation and checkpoints), "steps", "epochs" (whole ones), "parameters".

    Raises:
        UsageError: bad options or data, a folder that is taken, a run that cannot be resumed.
        KeyboardInterrupt: Ctrl-C; the state is saved.

    Example:
        >>> train(VisionOptions(out="runs/digits", epochs=1))["test_accuracy"]
    """
    return run_in_folder(options, lambda folder, state: VisionRun(options, folder, state, callbacks))


class VisionRun(AveragedRun):
    """A run that trains a classifier of images."""

    counted, rate_name = "images", "images_per_second"

    def load_data(self, state):
        options = self.options
        source = read_source(options.data, options.image_size)
        for note in source.notes:
            print(f"note: {note}", flush=True)
        if source.test is not None:
            options.refuse_given(("test_share",), "the data bring their own test images")
        self.data = split_images(source, validation=options.validation_share, test=options.test_share)
        task = self.data.task
        self.settings = options.chosen(size=max(task.height, task.width), folder=source.of_files)
        splits = self.data.splits
        counts = ", ".join(f"{split} {len(splits[split])}" for split in SPLITS)
        print(f"{self.data.origin}: {counts} images of {task.height} x {task.width} x {task.channels}", flush=True)
        self.batches = ImageBatches(
            splits["train"],
            task,
            batch_size=options.batch_size,
            seed=options.seed,
            augmentation=Augmentation(
                parse(self.settings["augment"]),
                height=task.height,
                width=task.width,
                channels=task.channels,
                fill=border(splits["train"].images),
                seed=options.seed,
            ),
        )
        return self.data.fingerprint()

    def make_model(self):
        options, count = self.options, len(self.data.task.labels)
        model = build_model(options.model, self.settings, self.data.task, dropout=options.dropout, seed=options.seed)
        smoothing = {"from_logits": True, "label_smoothing": options.label_smoothing}
        metrics = [
            # Under this name it takes the place of Keras' own, which cannot be restored in the middle of an epoch.
            keras.metrics.CategoricalCrossentropy(name="loss", **smoothing),
            keras.metrics.CategoricalAccuracy(name="accuracy"),
            keras.metrics.TopKCategoricalAccuracy(min(5, count), name="top5_accuracy"),
        ]
        optimizer = self.make_optimizer(model)
        model.compile(
            optimizer,
            loss=keras.losses.CategoricalCrossentropy(**smoothing),
            metrics=metrics,
            # Said explicitly: left alone, Keras compiles on its own where there is a GPU.
            jit_compile=options.jit_compile,
        )
        # Before anything is restored, the optimizer's variables must exist.
        optimizer.build(model.trainable_variables)
        return model, metrics

    @property
    def learning_rate(self):
        return self.settings["learning_rate"]

    def make_validation(self):
        batches = evaluation_dataset(self.data.splits["validation"], self.data.task)
        return AveragedValidation(
            self.model,
            self.folder.checkpoints_path / "best.npz",
            None if batches is None else lambda: self.model.evaluate(batches, verbose=0, return_dict=True),
            "accuracy",
            every=self.options.validate_every or max(1, round(VALIDATION_STEPS / self.steps_per_epoch())),
        )

    def described(self):
        counts = {split: len(self.data.splits[split]) for split in SPLITS}
        return {
            "data": {"origin": self.data.origin, **counts},
            "images": self.data.task.as_dict(),
            "chosen": self.settings,
        }

    def scores(self):
        found = {}
        for split in ("validation", "test"):
            part = self.data.splits[split]
            if not len(part):
                continue
            logits = self.model.predict(evaluation_dataset(part, self.data.task), verbose=0)
            found |= {f"{split}_{name}": value for name, value in measured(logits, part.labels).items()}
            if split == "test":
                self.confusion = confusion_matrix(part.labels, logits.argmax(axis=1), logits.shape[1])
        return found

    def write_results(self):
        if not len(self.data.splits["test"]):
            return
        labels = self.data.task.labels
        self.folder.write_json(
            self.folder.path / "confusion_matrix.json", {"labels": labels, "counts": self.confusion.tolist()}
        )
        write_atomically(
            self.folder.path / "confusion_matrix.png", lambda path: draw_confusion(self.confusion, labels, path)
        )


def measured(logits, labels):
    """How good logits are.

    Args:
        logits: float32 [N, classes].
        labels: ints [N].

    Returns:
        dict: "accuracy", "top5_accuracy" (the true class is among the five likeliest), "loss" (mean cross-entropy).
    """
    reached = places(logits, logits[np.arange(len(labels)), labels])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return {
        "accuracy": float(np.mean(reached <= 1)),
        "top5_accuracy": float(np.mean(reached <= 5)),
        "loss": float(np.mean(losses)),
    }


def _run_command(given):
    print_metrics(train(given_options(VisionOptions, given)))


command = typer_command(
    VisionOptions,
    _run_command,
    "Train a classifier of images with model.fit and write a run folder: model, config, history, metrics, pictures.",
)


def main(argv=None):
    """`python -m keras_attention.training.vision`; `argv` is that of the process by default."""
    run_alone(command, argv, "keras_attention.training.vision.task")
