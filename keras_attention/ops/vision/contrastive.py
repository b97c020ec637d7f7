"""The contrastive loss of paired vectors, and which pairs cannot be told apart."""

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product

# Odd numbers without a pattern; products wrap around at 64 bits.
_MULTIPLIERS = [np.int64(n) for n in (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB)]


def info_nce(image, text, scale, *, all_images=None, all_texts=None, first=0, duplicates=None):
    """The symmetric InfoNCE loss of each pair, in at least float32.

    The pair in row i is compared with all texts and with all images of the batch: the loss is the mean of
    -log softmax(scale * image_i . text_j) at j = i and of the same with both sides exchanged.

    Args:
        image, text: [B, P], unit vectors; row i of one belongs to row i of the other.
        scale: scalar, the inverse temperature.
        all_images, all_texts: [G, P], the vectors to compare with, this batch's among them; the batch itself by
            default.
        first: number of the batch's first row among them.
        duplicates: boolean [B, G], True = as good an answer as the pair's own, which is left out of the comparison:
            otherwise a right answer would count as a wrong one. The pair's own place does not matter.

    Returns:
        float32 [B]; float64 for float64 embeddings.

    Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
    https://arxiv.org/abs/2103.00020; van den Oord et al., 2018, https://arxiv.org/abs/1807.03748
    """
    dtype = dot_product.accumulation_dtype(image.dtype)
    image, text = tf.cast(image, dtype), tf.cast(text, dtype)
    all_images = image if all_images is None else tf.cast(all_images, dtype)
    all_texts = text if all_texts is None else tf.cast(all_texts, dtype)
    batch, total = checks.sizes(image)[0], checks.sizes(all_texts)[0]
    own = tf.cast(first, tf.int32) + tf.range(batch)
    left_out = None
    if duplicates is not None:
        left_out = tf.logical_and(duplicates, own[:, None] != tf.range(total))
    losses = []
    for x, others in ((image, all_texts), (text, all_images)):
        logits = tf.cast(scale, dtype) * tf.matmul(x, others, transpose_b=True)
        if left_out is not None:
            logits = tf.where(left_out, tf.constant(-np.inf, dtype), logits)
        losses.append(tf.nn.sparse_softmax_cross_entropy_with_logits(own, logits))
    return (losses[0] + losses[1]) / 2


def row_marks(ids, real=None):
    """A number for each row of ids that is the same for equal rows.

    Args:
        ids: integer [B, T].
        real: boolean [B, T]; ids that are not real make no difference. None = all are real.

    Returns:
        int64 [B]. Different rows share a number with a chance of about 2^-64.
    """
    ids = tf.convert_to_tensor(ids)
    places = tf.range(1, tf.cast(checks.sizes(ids)[1], tf.int64) + 1, dtype=tf.int64)
    x = tf.cast(ids, tf.int64) * _MULTIPLIERS[0] + places * _MULTIPLIERS[1]
    # Between the products the upper bits come down, so that sums of different rows do not meet.
    for multiplier in _MULTIPLIERS[1:]:
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(31, tf.int64))) * multiplier
    return tf.reduce_sum(x if real is None else tf.where(real, x, tf.zeros([], tf.int64)), axis=1)
