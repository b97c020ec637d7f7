"""What one replica of a `tf.distribute` strategy needs to know of the others."""

import tensorflow as tf


def gathered(x):
    """The rows of all replicas, one replica's below the other's, with the right gradient.

    The gradient of a row is the sum of what all replicas made of it; where each replica's loss is its share of one
    sum, and gradients of weights are added up as Keras does, two replicas give what one gives on the whole batch.

    Args:
        x: [B, ...]; B may differ between replicas, the other sizes not.

    Returns:
        `(rows [G, ...], first)`: the number of the first of this replica's own rows among them. Outside a strategy,
        and with one replica, `(x, 0)`.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return x, 0
    counts = replica.all_gather(tf.shape(x)[:1], axis=0)
    before = tf.range(tf.shape(counts)[0]) < replica.replica_id_in_sync_group
    return replica.all_gather(x, axis=0), tf.reduce_sum(tf.where(before, counts, 0))


def summed(value):
    """The sum of a per-replica number over all replicas of the running strategy."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def count():
    """How many replicas run this together."""
    replica = tf.distribute.get_replica_context()
    return 1 if replica is None else replica.num_replicas_in_sync
