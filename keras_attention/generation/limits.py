"""How long an answer may become: one rule for Keras, SavedModel and ONNX, so that all three answer alike."""

import numpy as np


def answer_limits(source_lengths, max_length):
    """The most tokens each answer may have, the end token included: `min(4 n + 32, max_length)`.

    A model that fails to end a sentence would otherwise run to `max_length` for each. The bound is loose on purpose:
    a number of two subwords is written out with thirty, and an answer that ends by itself never meets it. It depends
    on nothing but the row itself, which keeps answers independent of the batch.

    Args:
        source_lengths: int32 `[B]`, tokens of each source, begin and end of sentence included; a tensor or an array.
        max_length: the most target positions that the model knows.

    Returns:
        int32 `[B]`, of the same kind.
    """
    if isinstance(source_lengths, np.ndarray | np.generic):
        return np.minimum(4 * source_lengths + 32, max_length)
    import tensorflow as tf  # runtimes of arrays do without it

    return tf.minimum(4 * source_lengths + 32, max_length)
