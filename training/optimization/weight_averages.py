"""Means of a model's weights: over several checkpoints, and the moving average that an optimizer keeps."""

from contextlib import contextmanager

import numpy as np

from keras_attention.training.run.training_state import assign_variables, read_checkpoint, read_variables


def average_checkpoints(paths, group="model"):
    """Average the arrays of one group over checkpoint files, in float64.

    Arrays that are not floats, such as the states of random generators, come from the last file. Averaging the last
    few checkpoints of a run takes out much of the noise of the last updates (Vaswani et al., 2017, section 6.1,
    https://arxiv.org/abs/1706.03762; Izmailov et al., 2018, https://arxiv.org/abs/1803.05407). It is meant for weights
    of one run near its end; the mean of different runs is no model.

    Args:
        paths: checkpoint files, at least one, oldest first.
        group: the group to average.

    Returns:
        list of arrays with the dtypes they were stored in.

    Raises:
        ValueError: no paths, or checkpoints of different models.
        DamagedCheckpoint: a file cannot be read.
    """
    paths = list(paths)
    if not paths:
        raise ValueError("average_checkpoints needs at least one checkpoint. Got none.")
    sums, last = None, None
    for path in paths:
        last = read_checkpoint(path)[0][group]
        if sums is None:
            sums = [np.zeros(array.shape, np.float64) for array in last]
        if [total.shape for total in sums] != [array.shape for array in last]:
            raise ValueError(f"Checkpoints of one model are expected. {path} holds other arrays than {paths[0]}.")
        for total, array in zip(sums, last):
            total += array.astype(np.float64)
    means = []
    for total, array in zip(sums, last):
        floating = np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"
        means.append((total / len(paths)).astype(array.dtype) if floating else array)
    return means


@contextmanager
def moving_average(model):
    """Within the block, the trainable variables have their moving averages; afterwards what they had.

    The averages are those of an optimizer made with `use_ema=True` (Polyak and Juditsky, 1992); with any other one
    nothing changes. Keras itself puts them in at the end of `model.fit`, not for validation.

    Args:
        model: compiled model that has made at least one step.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of one that scales the loss
    if not optimizer.use_ema:
        yield
        return
    before = read_variables(model.trainable_variables)
    optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        assign_variables(model.trainable_variables, before, "weights")
