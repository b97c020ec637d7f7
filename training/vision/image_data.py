"""The labelled images of a run: three splits, the task they are, and batches of them."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.images.task import ImageTask
from keras_attention.training.run.epochs import epoch_dataset
from keras_attention.training.vision.image_sources import LabelledImages

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class ImageData:
    """Three splits of labelled images.

    Attributes:
        splits: "train", "validation", "test" -> `LabelledImages`.
        task: their `ImageTask`; mean and deviation are those of the training split.
        origin: where they came from, in words.
        notes: what was left out and what is missing, a line each.
    """

    splits: dict[str, LabelledImages]
    task: ImageTask
    origin: str
    notes: list = field(default_factory=list)

    def fingerprint(self):
        """A digest of all images, labels and names and of the split."""
        digest = hashlib.sha256("\n".join(self.task.labels).encode("utf-8", "surrogatepass"))
        for split in SPLITS:
            part = self.splits[split]
            digest.update(f"{split} {part.images.shape}\n".encode())
            digest.update(np.ascontiguousarray(part.images))
            digest.update(np.ascontiguousarray(part.labels))
        return digest.hexdigest()


def split_images(source, *, validation, test):
    """Split a source by class, the same way in every run.

    The test images are the source's own where it has them, and otherwise a share of each class; validation is a share
    of each class of the rest.

    Args:
        source: `ImageSource`.
        validation, test: shares from 0 to below 1.

    Returns:
        `ImageData`.

    Raises:
        UsageError: nothing is left to train on, or fewer than two classes.
    """
    known, own_test = source.known, source.test
    if len(source.names) < 2:
        raise UsageError(f"{source.origin} has {len(source.names)} class. Expected images of at least two.")
    if own_test is None:
        rest, held_out = stratified_split(known.labels, test, seed=0)
        known, own_test = known.chosen(rest), known.chosen(held_out)
    rest, held_out = stratified_split(known.labels, validation, seed=1)
    splits = {"train": known.chosen(rest), "validation": known.chosen(held_out), "test": own_test}
    count, height, width, channels = splits["train"].images.shape
    if count == 0:
        raise UsageError(f"{source.origin} has no images left to train on. Give more, or smaller shares.")
    notes = list(source.notes)
    for split, share in (("validation", validation), ("test", test)):
        if share and not len(splits[split]):
            notes.append(
                f"no image is held out for {split}: a share of {share} of each class rounds to 0. Give more images, or "
                f"a larger --{split}-share"
            )
    mean, std = pixel_statistics(splits["train"].images)
    task = ImageTask(labels=source.names, height=height, width=width, channels=channels, mean=mean, std=std)
    return ImageData(splits, task, source.origin, notes)


def pixel_statistics(images):
    """Mean and deviation of each channel of images uint8 [N, H, W, C], of pixels from 0 to 1: two tuples."""
    # In whole numbers, so that no float32 sum of millions of pixels is rounded.
    levels = [np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[-1])]
    means = [float(level @ np.arange(256)) / level.sum() for level in levels]
    variances = [float(level @ (np.arange(256) - mean) ** 2) / level.sum() for level, mean in zip(levels, means)]
    # Images of one colour have no deviation to divide by.
    deviations = [max(float(variance) ** 0.5 / 255, 1e-3) for variance in variances]
    return tuple(round(float(mean) / 255, 4) for mean in means), tuple(round(std, 4) for std in deviations)


def border(images):
    """The usual value at the border of images, which stands in for what lies beyond it."""
    edges = (images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1])
    return float(np.median(np.concatenate([edge.ravel() for edge in edges])))


def stratified_split(labels, share, seed):
    """Indices of two parts, each sorted: the rest, and `share` of every class, rounded to whole images.

    Args:
        labels: int [N].
        share: from 0 to below 1.
        seed: of the choice. The same labels are always split alike.
    """
    rng = np.random.default_rng(seed)
    held_out = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        held_out.append(members[: round(share * len(members))])
    held_out = np.sort(np.concatenate(held_out)) if held_out else np.zeros(0, int)
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


class ImageBatches:
    """The training batches of every epoch, each a function of the seed, the epoch and the step alone.

    Args:
        part: `LabelledImages`, held in memory.
        task: `ImageTask`.
        batch_size: images in a batch. The last ones of an epoch's order that fill no batch wait for another order:
            compiled steps have one shape, and mixing never meets a lone image.
        seed: of orders and augmentations.
        augmentation: function `(pixels float32 [B, H, W, C] from 0 to 255, labels float32 [B, N], number)` that returns
            changed pixels and labels; the number of the batch, counted over all epochs, decides its random numbers.
    """

    def __init__(self, part, task, *, batch_size, seed, augmentation):
        self.part, self.task, self.seed, self.augmentation = part, task, seed, augmentation
        self.batch_size = min(batch_size, len(part))

    def __len__(self):
        return len(self.part) // self.batch_size

    def planned(self, epoch):
        """The order of an epoch, and (begin, end, number, 0) of each of its batches; see `epoch_dataset`."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.part)).astype(np.int64)
        steps = np.arange(len(self), dtype=np.int64)
        begins = steps * self.batch_size
        return order, np.stack([begins, begins + self.batch_size, epoch * len(self) + steps, 0 * steps], axis=1)

    def dataset(self, first_epoch=0, first_step=0):
        """`tf.data.Dataset` of `(images float32 [B, H, W, C], labels float32 [B, N])`; see `epoch_dataset`."""
        with tf.device("CPU:0"):
            images, labels = tf.constant(self.part.images), tf.constant(self.part.labels)

        def gather(order, cut):
            chosen = tf.ensure_shape(order[cut[0] : cut[1]], [self.batch_size])
            pixels = tf.cast(tf.gather(images, chosen), tf.float32)
            targets = tf.one_hot(tf.gather(labels, chosen), len(self.task.labels))
            pixels, targets = self.augmentation(pixels, targets, cut[2])
            return self.task.normalized(pixels), targets

        return epoch_dataset(self, gather, first_epoch, first_step)


def evaluation_dataset(part, task, batch_size=256):
    """All images of a split once, in order, as `ImageBatches` gives them but never changed; None for no images."""
    if not len(part):
        return None
    count = len(task.labels)
    data = tf.data.Dataset.from_tensor_slices((part.images, part.labels)).batch(batch_size)
    return data.map(
        lambda images, labels: (task.normalized(tf.cast(images, tf.float32)), tf.one_hot(labels, count))
    ).prefetch(2)
