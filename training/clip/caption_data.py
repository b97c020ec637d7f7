"""The captioned images of a run: three splits that share no caption, and batches of pairs."""

import hashlib
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.images.task import ImageInput
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID
from keras_attention.training.clip.caption_sources import Captioned
from keras_attention.training.run.epochs import epoch_dataset
from keras_attention.training.translation import pairs
from keras_attention.training.vision.image_data import pixel_statistics

SPLITS = ("train", "validation", "gallery")


@dataclass(frozen=True)
class CaptionData:
    """Three splits of captioned images.

    Attributes:
        splits: "train", "validation", "gallery" -> `Captioned`.
        images: their `ImageInput`; mean and deviation are those of the training split.
    """

    splits: dict[str, Captioned]
    images: ImageInput

    def fingerprint(self):
        """A digest of all images and texts and of the split."""
        digest = hashlib.sha256()
        for split in SPLITS:
            part = self.splits[split]
            digest.update(f"{split} {part.images.shape}\n".encode())
            digest.update(np.ascontiguousarray(part.images))
            for row in zip(part.captions, part.tags, part.groups):
                digest.update(f"{row}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def split_captioned(source, *, validation, gallery):
    """Split captioned images by caption and image, the same way in every run.

    Captions count as the same after NFKC, case folding and evened spaces, images where all pixels are equal. A hash of
    captions decides: the first ones in its order are the gallery, the next the validation. Of each caption in these two
    one image is taken, and no image twice, so that every text has one right answer. Training sees none of their
    captions and images: other images of such a caption, and other captions of such an image, are left out.

    Args:
        source: `Captioned`.
        validation, gallery: how many pairs.

    Returns:
        `CaptionData`.

    Raises:
        UsageError: too few different captions or images for the two, or fewer than two pairs left to train on.
    """
    members = {}
    for index, caption in enumerate(source.captions):
        members.setdefault(pairs.normalized(caption), []).append(index)
    contents = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in source.images]
    wanted = {"gallery": gallery, "validation": validation}
    indices, held, left = {name: [] for name in SPLITS}, set(), []
    for key in sorted(members, key=lambda key: (pairs.hash_place(key, 0), key)):
        name = next((name for name, count in wanted.items() if len(indices[name]) < count), None)
        index = next((index for index in members[key] if contents[index] not in held), None)
        if name is None or index is None:
            left.append(key)
        else:
            indices[name].append(index)
            held.add(contents[index])
    indices["train"] = [index for key in left for index in members[key] if contents[index] not in held]
    if any(len(indices[name]) < count for name, count in wanted.items()) or len(indices["train"]) < 2:
        raise UsageError(
            f"{source.origin} has {len(members)} different captions of {len(set(contents))} different images, too few "
            f"for a gallery of {gallery}, a validation of {validation} and training. Give smaller --gallery and "
            "--validation-pairs."
        )
    splits = {name: source.chosen(sorted(indices[name])) for name in SPLITS}
    _, height, width, channels = source.images.shape
    mean, std = pixel_statistics(splits["train"].images)
    return CaptionData(splits, ImageInput(height=height, width=width, channels=channels, mean=mean, std=std))


class Texts:
    """The texts of captioned images as token ids, whole or with some of their tags.

    Captions and tags are joined by spaces, at which the tokenizer always cuts: the ids of a text are those of its
    parts, one after the other.

    Args:
        part: `Captioned`.
        tokenizer: `SentencePieceTokenizer`.
        max_length: the most ids of a text, begin and end of sentence included; longer ones lose their last subwords.
    """

    def __init__(self, part, tokenizer, max_length):
        self.max_length = max_length
        self._captions = tokenizer.encode(part.captions)
        flat = iter(tokenizer.encode([tag for tags in part.tags for tag in tags]))
        self._tags = [[next(flat) for _ in tags] for tags in part.tags]

    def whole(self):
        """int32 [N, max_length]: every caption with all its tags."""
        return self._padded(self._tags)

    def drawn(self, rng):
        """int32 [N, max_length]: every caption with any number of its tags, in any order."""
        chosen = []
        for tags in self._tags:
            order = rng.permutation(len(tags))[: rng.integers(len(tags) + 1)]
            chosen.append([tags[i] for i in order])
        return self._padded(chosen)

    def _padded(self, chosen):
        ids = np.full((len(self._captions), self.max_length), PAD_ID, np.int32)
        for row, caption, tags in zip(ids, self._captions, chosen):
            text = [BOS_ID, *caption, *(id for tag in tags for id in tag)][: self.max_length - 1]
            row[: len(text) + 1] = [*text, EOS_ID]
        return ids


class PairBatches:
    """The training batches of every epoch, each a function of the seed, the epoch and the step alone.

    Args:
        part: `Captioned`, held in memory.
        texts: `Texts` of it.
        images: `ImageInput`.
        batch_size: pairs in a batch. The last ones of an epoch's order that fill no batch wait for another order: a
            smaller batch would be an easier task.
        seed: of orders, drawn texts and augmentations.
        augmentation: as for `ImageBatches`.
    """

    def __init__(self, part, texts, images, *, batch_size, seed, augmentation):
        self.part, self.texts, self.images = part, texts, images
        self.seed, self.augmentation = seed, augmentation
        self.batch_size = min(batch_size, len(part))

    def __len__(self):
        return len(self.part) // self.batch_size

    def planned(self, epoch):
        """The order of an epoch with its texts behind it, and where each batch begins, ends and what its number is.

        The texts stand in the order of the pairs, max_length ids for each, so that one array tells all of an epoch.
        """
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.part))
        drawn = self.texts.drawn(rng)[order]
        steps = np.arange(len(self), dtype=np.int64)
        begins = steps * self.batch_size
        cuts = np.stack([begins, begins + self.batch_size, epoch * len(self) + steps, 0 * steps], axis=1)
        return np.concatenate([order, drawn.ravel()]).astype(np.int64), cuts

    def dataset(self, first_epoch=0, first_step=0):
        """`tf.data.Dataset` of `({"images": float32 [B, H, W, C], "text": int32 [B, T]},)`; see `epoch_dataset`."""
        count, length, size = len(self.part), self.texts.max_length, self.batch_size
        with tf.device("CPU:0"):
            pixels = tf.constant(self.part.images)

        def gather(planned, cut):
            chosen = tf.ensure_shape(planned[cut[0] : cut[1]], [size])
            text = tf.reshape(planned[count + cut[0] * length : count + cut[1] * length], [size, length])
            # Pairs have no classes: the augmentation's labels are not looked at.
            changed, _ = self.augmentation(tf.cast(tf.gather(pixels, chosen), tf.float32), tf.zeros([size, 1]), cut[2])
            return ({"images": self.images.normalized(changed), "text": tf.cast(text, tf.int32)},)

        return epoch_dataset(self, gather, first_epoch, first_step)


def evaluation_pairs(part, texts, images):
    """`{"images", "text"}`, all pairs of a split in order, never changed, with their whole texts."""
    pixels = tf.cast(part.images, tf.float32)
    return {"images": images.normalized(pixels), "text": tf.constant(texts.whole())}
