"""A `tf.data.Dataset` over the planned batches of epochs, from any step of any epoch on."""

import tensorflow as tf


def epoch_dataset(plan, gather, first_epoch=0, first_step=0):
    """A dataset whose every iteration is one epoch, from `first_epoch` on.

    The first iteration begins at `first_step`: earlier steps are not computed. An epoch counts as done when its last
    batch is taken; iterating anew before that gives the same epoch again. An epoch never depends on how many elements
    were prefetched.

    `model.fit` counts the batches of its first epoch and expects as many of the later ones: give an epoch that begins
    at `first_step > 0` a `fit` of its own (`initial_epoch=e, epochs=e + 1`).

    Args:
        plan: has `len(plan)`, the batches of an epoch, and `planned(epoch)`, which returns `(order, cuts)`: int64
            [kept] and int64 [len(plan), 4], where a row says which part of the order a batch is made of.
        gather: function `(order, cut)` of tensors that puts a batch together in the graph, without Python.
        first_epoch, first_step: where to begin.

    Returns:
        Dataset of what `gather` returns. Its cardinality is known when `first_step` is 0.
    """
    if not 0 <= first_step <= len(plan):
        raise ValueError(f"first_step must be from 0 to {len(plan)}, the batches of an epoch. Got {first_step}.")
    if first_step == len(plan):
        first_epoch, first_step = first_epoch + 1, 0
    position = _Position(plan, first_epoch, first_step)

    def batches(planned):
        order, cuts = tf.numpy_function(planned, [], (tf.int64, tf.int64))
        order = tf.ensure_shape(order, [None])
        cuts = tf.data.Dataset.from_tensor_slices(tf.ensure_shape(cuts, [None, 4]))
        return cuts.map(lambda cut: gather(order, cut))

    # Only the last batch moves the position, and nothing after it reads ahead: what was prefetched but not taken does
    # not count.
    once = tf.data.Dataset.range(1)
    before_the_last = once.flat_map(lambda _: batches(position.all_but_last)).prefetch(4)
    dataset = before_the_last.concatenate(once.flat_map(lambda _: batches(position.last)))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = dataset.with_options(options)
    if first_step == 0:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(plan)))
    return dataset


class _Position:
    """How far the iterations of a dataset have come; the epoch at hand is planned once."""

    def __init__(self, plan, epoch, step):
        self.plan, self.epoch, self.step = plan, epoch, step
        self._planned = None

    def _remaining(self):
        if self._planned is None:
            order, cuts = self.plan.planned(self.epoch)
            self._planned = order, cuts[self.step :]
        return self._planned

    def all_but_last(self):
        order, cuts = self._remaining()
        return order, cuts[:-1]

    def last(self):
        order, cuts = self._remaining()
        self.epoch, self.step, self._planned = self.epoch + 1, 0, None
        return order, cuts[-1:]
