"""Files as bytes, cut into the pieces that a language model learns in one step each."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.text import BOS_ID, PAD_ID, ByteTokenizer
from keras_attention.training.run.epochs import epoch_dataset


def read_bytes(path):
    """The content of a file, unpacked where its name ends in .gz; any bytes will do.

    Raises:
        UsageError: there is no such file, it cannot be read or unpacked, or it is empty.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is not a complete gzip file ({error}): compress it again, or drop the .gz") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give the name of a file") from None
    if not content:
        raise UsageError(f"{path} is empty: give a file with something to learn")
    return content


def fingerprint(documents):
    """A digest of the documents, in their order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document).to_bytes(8, "little"))
        digest.update(document)
    return digest.hexdigest()


def split_tail(documents, share):
    """Each document's ids, int32, cut in two: `(beginnings, ends)`.

    A beginning starts with the begin of a text. An end starts with the last id of its beginning, so that its first byte
    is told like all others, and is left out where it would be empty.

    Args:
        documents: list of `bytes`.
        share: part of each, from its end.
    """
    beginnings, ends = [], []
    for document in documents:
        ids = np.concatenate([[BOS_ID], ByteTokenizer().encode(document)]).astype(np.int32)
        cut = len(ids) - int(len(document) * share)
        beginnings.append(ids[:cut])
        if cut < len(ids):
            ends.append(ids[cut - 1 :])
    return beginnings, ends


class ByteWindows:
    """Which pieces stand together in which step of which epoch.

    A piece is `length` ids and the id after each of them. A document is cut into as many whole pieces as fit; in
    training they begin anew in every epoch, at a random place of what is left over, and are mixed. An epoch is a pure
    function of the seed and its number, so that an interrupted run goes on at any step. Otherwise (`shuffle=False`) the
    pieces follow each other from the document's begin, the last one padded, so that every id is predicted once.

    Args:
        documents: list of int32 [N] ids; each predicts N - 1.
        length: ids of a piece.
        batch_size: pieces of a batch; the last batch of an epoch may have fewer.
        seed: decides all epochs.
        shuffle: whether this is training.
        whole_batches: pad the last batch with rows of padding to `batch_size`, for compiled steps.

    Raises:
        UsageError: in training, no document has a whole piece.

    Example:
        >>> windows = ByteWindows([np.arange(2, 12)], length=4, batch_size=2, shuffle=False)
        >>> ids, labels = next(iter(windows.dataset()))
        >>> ids.shape, labels[0].numpy().tolist()
        (TensorShape([2, 4]), [3, 4, 5, 6])
    """

    def __init__(self, documents, *, length, batch_size, seed=0, shuffle=True, whole_batches=False):
        self.length, self.batch_size, self.seed, self.shuffle = length, batch_size, seed, shuffle
        self.whole_batches = whole_batches
        predicted = np.array([len(document) - 1 for document in documents])
        if shuffle and predicted.max() < length:
            raise UsageError(
                f"the longest file has {predicted.max()} bytes to train on, less than one piece of {length}: give more "
                f"text, or a --length of {predicted.max()} or less"
            )
        whole = np.maximum(predicted // length, 1)
        self._counts = whole if shuffle else -(-predicted // length)
        # What a training piece may be moved by; a document shorter than a piece is one piece, padded.
        self._slack = np.maximum(predicted - whole * length, 0)
        # Padding after each document: a piece that reaches past its end reads nothing of the next one.
        padded = [np.pad(document, (0, length + 1), constant_values=PAD_ID) for document in documents]
        self._begins = np.cumsum([0, *(len(document) for document in padded[:-1])])
        self._ids = np.concatenate(padded).astype(np.uint16)
        self.tokens = int(np.minimum(self._counts * length, predicted).sum())

    def __len__(self):
        """Batches of an epoch."""
        return math.ceil(self._counts.sum() / self.batch_size)

    def planned(self, epoch):
        """`(order, cuts)` as `epoch_dataset` takes them: where each piece begins, and which pieces make each batch."""
        moved, mix = np.zeros_like(self._slack), np.arange(self._counts.sum())
        if self.shuffle:
            rng = np.random.default_rng([self.seed, epoch])
            moved, mix = rng.integers(0, self._slack + 1), rng.permutation(mix)
        starts = [
            begin + move + self.length * np.arange(count)
            for begin, move, count in zip(self._begins, moved, self._counts, strict=True)
        ]
        first = np.arange(len(self)) * self.batch_size
        last = np.minimum(first + self.batch_size, len(mix))
        rows = np.full_like(first, self.batch_size) if self.whole_batches else last - first
        cuts = np.stack([first, last, rows, np.full_like(first, self.length)], axis=1)
        return np.concatenate(starts)[mix].astype(np.int64), cuts.astype(np.int64)

    def dataset(self, first_epoch=0, first_step=0):
        """`tf.data.Dataset` of `(ids [B, length], labels [B, length])`, int32, 0 = padding; see `epoch_dataset`."""
        with tf.device("CPU:0"):
            ids = tf.constant(self._ids)
        rows = self.batch_size if self.whole_batches else None

        def gather(order, cut):
            starts = order[cut[0] : cut[1]]
            pieces = tf.cast(tf.gather(ids, starts[:, None] + tf.range(self.length + 1, dtype=tf.int64)), tf.int32)
            pieces = tf.pad(pieces, [[0, cut[2] - tf.size(starts, tf.int64)], [0, 0]], constant_values=PAD_ID)
            pieces = tf.ensure_shape(pieces, [rows, self.length + 1])
            labels = pieces[:, 1:]
            return tf.where(labels == PAD_ID, PAD_ID, pieces[:, :-1]), labels

        return epoch_dataset(self, gather, first_epoch, first_step)
