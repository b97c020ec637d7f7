"""Training a classifier of images: from labelled images to a run folder that holds a finished model.

    python -m keras_attention.training.vision --data digits --out runs/digits

and the same from Python: `train(VisionOptions(out="runs/digits"))`.
"""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from keras_attention.training.optimization.averaged_adamw import averaged_adamw
from keras_attention.training.run.fitting import fit_in_folder
from keras_attention.training.run.run_folder import write_atomically
from keras_attention.training.run.task import Task, TaskData
from keras_attention.training.run.validation import Validation
from keras_attention.training.vision.augmentation import Augmentation
from keras_attention.training.vision.augmentation_names import parse
from keras_attention.training.vision.classifiers import build_model
from keras_attention.training.vision.confusion import confusion_matrix, draw_confusion
from keras_attention.training.vision.image_data import SPLITS, ImageBatches, border, evaluation_dataset, split_images
from keras_attention.training.vision.image_sources import read_source
from keras_attention.training.vision.retrieval import places

TOP = 5  # of five classes or fewer, the true one is always among them
# Between two validations by default, where epochs are shorter: a look at a few images costs as much as many steps.
VALIDATION_STEPS = 100


def train(options, *, callbacks=()):
    """Train a classifier of images and leave it in a run folder; see `fit_in_folder`.

    The model with the best accuracy on the validation images is kept (ties go to the lower loss); the test images are
    looked at once, after that. Beside what every run folder holds there are confusion_matrix.png and
    confusion_matrix.json of the test images, and under "images" in config.json the `ImageTask`: labels, size, channels,
    mean and deviation.

    Args:
        options: `VisionOptions`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict, the content of metrics.json: "test/accuracy", "test/loss" (without label smoothing), of more than five
        classes "test/top5_accuracy", the same under "validation/", and what `fit_in_folder` says of the run;
        "train_rate" counts images.

    Raises:
        UsageError, KeyboardInterrupt: see `fit_in_folder`.

    Example:
        >>> train(VisionOptions(out="runs/digits", epochs=1))["test/accuracy"]
    """
    return fit_in_folder(VisionTask(options), callbacks=callbacks)


@dataclass(frozen=True, kw_only=True)
class VisionData(TaskData):
    """Labelled images: split -> `LabelledImages`, the `ImageTask`, and what `VisionOptions.chosen` chose."""

    splits: dict
    task: object
    settings: dict


class VisionTask(Task):
    """A classifier of images."""

    counted = "images"

    def read(self, folder):
        options = self.options
        source = read_source(options.data, options.image_size)
        if source.test is not None:
            options.refuse_given(("test_share",), "the data bring their own test images")
        images = split_images(source, validation=options.validation_share, test=options.test_share)
        for note in images.notes:
            print(f"note: {note}", flush=True)
        task, splits = images.task, images.splits
        settings = options.chosen(size=max(task.height, task.width), folder=source.of_files)
        sizes = {split: len(splits[split]) for split in SPLITS}
        counts = ", ".join(f"{split} {count}" for split, count in sizes.items())
        print(f"{images.origin}: {counts} images of {task.height} x {task.width} x {task.channels}", flush=True)
        augmentation = Augmentation(
            parse(settings["augment"]),
            height=task.height,
            width=task.width,
            channels=task.channels,
            fill=border(splits["train"].images),
            seed=options.seed,
        )
        return VisionData(
            batches=ImageBatches(
                splits["train"], task, batch_size=options.batch_size, seed=options.seed, augmentation=augmentation
            ),
            fingerprint=images.fingerprint(),
            origin=images.origin,
            sizes=sizes,
            config={"images": task.as_dict(), "chosen": settings},
            peak_learning_rate=settings["learning_rate"],
            splits=splits,
            task=task,
            settings=settings,
        )

    def build(self, data):
        options = self.options
        model = build_model(options.model, data.settings, data.task, dropout=options.dropout, seed=options.seed)
        smoothing = {"from_logits": True, "label_smoothing": options.label_smoothing}
        metrics = [
            # Under this name it takes the place of Keras' own, which cannot be restored in the middle of an epoch.
            keras.metrics.CategoricalCrossentropy(name="loss", **smoothing),
            keras.metrics.CategoricalAccuracy(name="accuracy"),
        ]
        if len(data.task.labels) > TOP:
            metrics.append(keras.metrics.TopKCategoricalAccuracy(TOP, name="top5_accuracy"))
        model.compile(
            averaged_adamw(model, options),
            loss=keras.losses.CategoricalCrossentropy(**smoothing),
            metrics=metrics,
            # Said explicitly: left alone, Keras compiles on its own where there is a GPU.
            jit_compile=options.jit_compile,
        )
        return model, metrics

    def validation(self, data, model, best_path):
        images = evaluation_dataset(data.splits["validation"], data.task)
        every = self.options.validate_every or max(1, round(VALIDATION_STEPS / len(data.batches)))

        def measure(epoch, last):
            if images is None or not (last or epoch % every == 0):
                return {}
            return model.evaluate(images, verbose=0, return_dict=True)

        return Validation(model, best_path, measure, "accuracy")

    def score(self, data, model, folder, kept):
        scores = {}
        for split in ("validation", "test"):
            part = data.splits[split]
            if len(part):
                logits = model.predict(evaluation_dataset(part, data.task), verbose=0)
                scores[split] = measured(logits, part.labels)
        if "test" in scores:
            labels, counts = data.task.labels, confusion_matrix(part.labels, logits.argmax(axis=1), logits.shape[1])
            folder.write_json(folder.path / "confusion_matrix.json", {"labels": labels, "counts": counts.tolist()})
            write_atomically(folder.path / "confusion_matrix.png", lambda path: draw_confusion(counts, labels, path))
        return scores


def measured(logits, labels):
    """How good logits are.

    Args:
        logits: float32 [N, classes].
        labels: ints [N].

    Returns:
        dict: "accuracy", "loss" (mean cross-entropy) and, of more than five classes, "top5_accuracy" (the true class is
        among the five likeliest).
    """
    reached = places(logits, logits[np.arange(len(labels)), labels])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    found = {"accuracy": float(np.mean(reached <= 1)), "loss": float(np.mean(losses))}
    return found | ({"top5_accuracy": float(np.mean(reached <= TOP))} if logits.shape[1] > TOP else {})
