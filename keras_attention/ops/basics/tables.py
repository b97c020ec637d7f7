"""Tables of weights whose rows are looked up."""

import tensorflow as tf


def with_dense_gradient(table, dtype=None):
    """A table to look rows up in: the variable's values as `dtype`, with a gradient that is one dense tensor.

    A lookup's own gradient is the list of the rows looked up, where a row stands as often as it was. Keras' optimizers
    take such rows one by one into their averages: Adam squares each instead of their sum, and moves a row that comes n
    times by up to sqrt(n) steps; several replicas, whose rows are listed one after the other, then differ from one.
    The rows are summed in the variable's own precision.

    Args:
        table: `keras.Variable` [N, E], made with `autocast=False`. dtype: its own by default.

    Returns:
        A tensor [N, E], for `tf.gather`.
    """
    # The gradient of a reshape is dense, whatever comes in. Before a graph runs, this one of no effect is removed.
    values = tf.reshape(tf.convert_to_tensor(table), table.shape)
    return values if dtype is None else tf.cast(values, dtype)
