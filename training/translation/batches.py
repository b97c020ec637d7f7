"""Batches of sentence pairs: a plan that knows every epoch in advance, and the tf.data pipeline that follows it."""

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID
from keras_attention.training.run.epochs import epoch_dataset


class NothingFits(UsageError):
    """None of the pairs is short enough."""


class BatchPlan:
    """Which pairs stand together in which step of which epoch.

    Pairs of similar length share a batch, and a batch holds as many as its token budget allows: rows times the
    longest row is at most `tokens_per_batch`. Every epoch is a pure function of the seed and its own number, so a run
    that was interrupted continues at any step without replaying what came before. Each kept pair occurs once per
    epoch; the number of batches is the same in all of them.

    Args:
        source_ids: Sequence of N id sequences without special ids, as `SentencePieceTokenizer.encode` gives them.
        target_ids: The same for the targets.
        tokens_per_batch: Token budget of a batch, padding included, counted on the longer side.
        max_length: Longest source (begin and end of sentence included) and longest target (one of them included);
            longer pairs are left out and counted in `dropped`.
        length_multiple: Lengths are rounded up to a multiple of it to tell which pairs are similar. Larger: batches
            are mixed better; smaller: less padding.
        seed: Decides the order of all epochs.
        shuffle: Mix pairs and batches anew in each epoch. False: every epoch is the same, shortest pairs first.
        static_shapes: Pad rows and lengths so that only a few shapes occur (`shapes`), one per length bucket; for
            compiled training steps. Rows that were added are all padding, which losses and metrics leave out.

    Attributes:
        dropped: Number of pairs that are longer than `max_length`.
        shapes: With `static_shapes`, the sorted list of (rows, length) that batches have; source and target have the
            same length. None without.

    Raises:
        NothingFits: No pair is left. UsageError: One pair alone exceeds the budget.

    Example:
        >>> plan = BatchPlan([[5, 6], [7]], [[8], [9, 5, 6]], tokens_per_batch=64, max_length=16)
        >>> inputs, labels = next(iter(plan.dataset()))
        >>> inputs["source"].shape, inputs["target"].shape, labels.shape
        (TensorShape([2, 4]), TensorShape([2, 4]), TensorShape([2, 4]))
    """

    def __init__(
        self,
        source_ids,
        target_ids,
        *,
        tokens_per_batch,
        max_length,
        length_multiple=8,
        seed=0,
        shuffle=True,
        static_shapes=False,
    ):
        if len(source_ids) != len(target_ids):
            raise ValueError(
                f"each source needs its target. Got {len(source_ids)} source_ids and {len(target_ids)} target_ids."
            )
        for name, value, least in (
            ("tokens_per_batch", tokens_per_batch, 1),
            ("max_length", max_length, 1),
            ("length_multiple", length_multiple, 1),
            ("seed", seed, 0),
        ):
            if int(value) != value or value < least:
                raise UsageError(f"{name} must be a whole number of at least {least}. Got {value}.")
        self.seed = seed
        self.shuffle = shuffle
        self.static_shapes = static_shapes
        self._sources = _Rows(source_ids)
        self._targets = _Rows(target_ids)
        # A source is fed whole (begin + x + end); of a target the input lacks the end and the labels lack the begin.
        longest = np.maximum(self._sources.lengths, self._targets.lengths - 1)
        self._kept = np.flatnonzero(longest <= max_length)
        self.dropped = len(longest) - len(self._kept)
        if not len(self._kept):
            shortest = f"; the shortest needs {longest.min()}" if len(longest) else ""
            raise NothingFits(f"none of {len(longest)} pairs has at most max_length={max_length} tokens{shortest}")
        longest = longest[self._kept]
        if longest.max() > tokens_per_batch:
            raise UsageError(
                f"the longest pair has {longest.max()} tokens, more than tokens_per_batch={tokens_per_batch}: raise "
                "tokens_per_batch or lower max_length"
            )
        edges = _bucket_edges(longest.max(), length_multiple, min(max_length, tokens_per_batch), static_shapes)
        self._bucket = edges[np.searchsorted(edges, longest)]  # [kept] rounded lengths
        self._cuts = self._cut(tokens_per_batch)

    def _cut(self, tokens_per_batch):
        """The cuts of `planned`, not shuffled: among pairs sorted by bucket they are the same in every epoch."""
        cuts = []
        begin, ordered = 0, np.sort(self._bucket)
        while begin < len(ordered):
            if self.static_shapes:
                last = np.searchsorted(ordered, ordered[begin], side="right")
                first = np.searchsorted(ordered, ordered[begin], side="left")
                rows = min(tokens_per_batch // ordered[begin], last - first)
                end = min(begin + rows, last)
            else:
                # The next pair is the longest one so far: it decides whether the batch is still within its budget.
                reach = ordered[begin : begin + tokens_per_batch // ordered[begin]]
                fits = np.arange(1, len(reach) + 1) * reach <= tokens_per_batch
                rows = len(reach) if fits.all() else int(np.argmin(fits))
                end = begin + rows
            cuts.append((begin, end, rows, ordered[begin] if self.static_shapes else 0))
            begin = end
        return np.array(cuts, np.int64)

    @property
    def shapes(self):
        return sorted(set(map(tuple, self._cuts[:, 2:].tolist()))) if self.static_shapes else None

    def __len__(self):
        """Number of batches in an epoch."""
        return len(self._cuts)

    def epoch(self, number):
        """The batches of an epoch.

        Args:
            number: Number of the epoch, from 0.

        Returns:
            A list of `len(self)` index arrays into the sequences that were given.
        """
        order, cuts = self.planned(number)
        return [order[begin:end] for begin, end, _, _ in cuts]

    def planned(self, number):
        """The order of the kept pairs [kept], and how it is cut: (begin, end, rows, length) of each batch [batches, 4].

        Rows and length are those to pad to; a length of 0 means the longest row's.
        """
        rng = np.random.default_rng([self.seed, number])
        if not self.shuffle:
            return self._kept[np.argsort(self._bucket, kind="stable")], self._cuts
        ties = rng.permutation(len(self._kept))
        return self._kept[np.lexsort((ties, self._bucket))], rng.permutation(self._cuts)

    def batch(self, indices, shape=None):
        """The arrays of one batch.

        Args:
            indices: Indices of pairs, as `epoch` gives them.
            shape: Rows and length to pad to. None: no more than the longest row needs.

        Returns:
            `({"source": [B, S], "target": [B, T]}, labels [B, T])`, int32, 0 = padding. The source has begin and end
            of sentence, exactly as `SentencePieceTokenizer.tokenize` gives it; the target begins with begin of
            sentence; the labels are the target one step ahead and close with end of sentence.
        """
        rows, length = shape or (len(indices), 0)
        source = self._sources.padded(indices, rows, length)
        target = self._targets.padded(indices, rows, length + 1 if length else 0)
        labels = target[:, 1:]
        return {"source": source, "target": np.where(labels == PAD_ID, PAD_ID, target[:, :-1])}, labels

    def dataset(self, first_epoch=0, first_step=0):
        """A `tf.data.Dataset` of `({"source": [B, S], "target": [B, T]}, labels [B, T])`, see `batch`.

        Every iteration is one epoch, from a step of `first_epoch` on; see `epoch_dataset`.
        """
        sources, targets = self._sources.tensors(), self._targets.tensors()

        def gather(order, cut):
            return _gather_batch(sources, targets, order, cut)

        return epoch_dataset(self, gather, first_epoch, first_step)


class _Rows:
    """Id sequences of different lengths in one flat array, each with begin and end of sentence."""

    def __init__(self, sequences):
        self.lengths = np.fromiter((len(row) + 2 for row in sequences), np.int64, len(sequences))
        self.begins = np.cumsum(self.lengths) - self.lengths
        self.ids = np.empty(self.lengths.sum(), np.int32)
        for begin, row in zip(self.begins, sequences):
            self.ids[begin] = BOS_ID
            self.ids[begin + 1 : begin + 1 + len(row)] = row
            self.ids[begin + 1 + len(row)] = EOS_ID

    def padded(self, indices, rows, length):
        """[rows, length] of the sequences `indices`, padded below and on the right; length 0: the longest one's."""
        lengths = self.lengths[indices]
        columns = np.arange(length or lengths.max())
        places = np.minimum(self.begins[indices, None] + columns, len(self.ids) - 1)
        ids = np.where(columns < lengths[:, None], self.ids[places], PAD_ID)
        return np.pad(ids, [(0, rows - len(indices)), (0, 0)], constant_values=PAD_ID)

    def tensors(self):
        """(ids, begins, lengths) for `_gather`: captured by a graph, while arrays would be copied into it."""
        with tf.device("CPU:0"):
            return tf.constant(self.ids), tf.constant(self.begins), tf.constant(self.lengths)


def _gather_batch(sources, targets, order, cut):
    """`BatchPlan.batch` as TensorFlow operations; order [kept] and cut [4] as `BatchPlan.planned` gives them."""
    begin, end, rows, length = tf.unstack(cut)
    indices = order[begin:end]
    source = _gather(sources, indices, rows, length)
    target = _gather(targets, indices, rows, tf.where(length > 0, length + 1, 0))
    labels = target[:, 1:]
    return {"source": source, "target": tf.where(labels == PAD_ID, PAD_ID, target[:, :-1])}, labels


def _gather(tensors, indices, rows, length):
    """`_Rows.padded` as TensorFlow operations."""
    ids, begins, lengths = tensors
    begins, lengths = tf.gather(begins, indices), tf.gather(lengths, indices)
    columns = tf.range(tf.where(length > 0, length, tf.reduce_max(lengths)))
    places = tf.minimum(begins[:, None] + columns, tf.size(ids, tf.int64) - 1)
    found = tf.where(columns < lengths[:, None], tf.gather(ids, places), PAD_ID)
    return tf.pad(found, [[0, rows - tf.size(indices, tf.int64)], [0, 0]], constant_values=PAD_ID)


def _bucket_edges(longest, multiple, limit, static_shapes):
    """Rounded lengths; with static shapes they grow by at least a quarter, so that their number stays small."""
    edges = [multiple]
    while edges[-1] < longest:
        step = multiple * max(1, edges[-1] // 4 // multiple) if static_shapes else multiple
        edges.append(edges[-1] + step)
    # Rounding up must not exceed what the model or the budget can take.
    edges[-1] = min(edges[-1], limit)
    return np.array(edges)
