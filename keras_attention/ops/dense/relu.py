"""Weights by ReLU in place of softmax."""

import tensorflow as tf


def masked_relu(scores, allowed=None):
    """relu(scores) / n over the last axis, n the number of allowed keys; zero weights in rows without any.

    Args:
        scores: [..., T, S].
        allowed: boolean, broadcastable to scores; None = all.

    Returns:
        Nonnegative weights [..., T, S] in the scores' dtype. They need not sum to 1.

    Reference: Wortsman et al., "Replacing softmax with ReLU in Vision Transformers", 2023,
    https://arxiv.org/abs/2309.08586
    """
    keys = tf.shape(scores)[-1]
    if allowed is None:
        return tf.nn.relu(scores) / tf.cast(keys, scores.dtype)
    every = tf.ones([keys], tf.bool)  # a mask may have size 1 on the last axis
    count = tf.reduce_sum(tf.cast(tf.logical_and(allowed, every), scores.dtype), axis=-1, keepdims=True)
    return tf.where(allowed, tf.nn.relu(scores), tf.zeros([], scores.dtype)) / tf.maximum(count, 1)
