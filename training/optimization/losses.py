"""Cross-entropy, accuracy and perplexity over the real tokens of padded sequences.

One rule for all of them: a position is real when its label is not `ignore_id` *and* no implicit Keras mask hides it.
The sum over real tokens is divided by their number, never by the number of positions, so neither the amount of padding
nor the way sentences fall into batches or replicas can move the value. Each real token counts with its sample weight
(1 where none is given), in the sum and in the number alike; a weight of 0 on a padded position changes nothing.

Batches that Keras' own `gradient_accumulation_steps` accumulates are outside this rule: the optimizer takes the mean of
their means, in which a token of a short batch counts for more than one of a long batch. Give one larger batch instead.
"""

import keras
import tensorflow as tf

from keras_attention.ops.basics import replicas
from keras_attention.ops.dense.dot_product import accumulation_dtype


def token_losses(labels, logits, label_smoothing=0.0):
    """Cross-entropy of each token, in float32 for logits of half precision (float64 for float64).

    With smoothing e the target distribution is `(1 - e) * one_hot(label) + e / V` (Szegedy et al., 2016,
    https://arxiv.org/abs/1512.00567). A token whose logit is -inf is as if not in the vocabulary: the others share its
    part of e, so that the loss is finite wherever the label's logit is.

    Args:
        labels: integers [...].
        logits: floats [..., V].
        label_smoothing: the probability mass that is spread over all V tokens.

    Returns:
        float32 or float64 [...]. NaN where a label is no index of the vocabulary: a graph cannot raise, and a wrong id
        must not pass as an easy token.
    """
    vocab_size = logits.shape[-1]
    logits = tf.cast(logits, accumulation_dtype(logits.dtype))
    known = (labels >= 0) & (labels < vocab_size)
    labels = tf.where(known, labels, 0)
    if label_smoothing:
        losses = tf.reshape(
            _smoothed(tf.reshape(labels, [-1]), tf.reshape(logits, [-1, vocab_size]), label_smoothing),
            tf.shape(labels),
        )
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.where(known, losses, tf.constant(float("nan"), losses.dtype))


def _smoothed(labels, logits, smoothing):
    """Cross-entropy [N] of logits [N, V] with `(1 - e) * one_hot(label) + e / V`, without a tensor of these targets.

    It is the loss without smoothing, which keeps its digits where it is small, and e * (logits[label] - mean(logits)).
    The gradient is softmax(logits) less the targets, which differ from e / V in one place of a row.
    """
    infinity = tf.constant(float("inf"), logits.dtype)

    @tf.custom_gradient
    def losses(logits):
        plain, gradient = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
        mean, share, blocked = _open_mean(logits)
        own = tf.gather(logits, labels, batch_dims=1)

        def backward(upstream):
            even = (smoothing * share * upstream)[:, None]
            whole = gradient * upstream[:, None] - even
            # Where a logit is -inf its softmax and its target are 0.
            whole = tf.cond(blocked, lambda: tf.where(logits > -infinity, whole, tf.zeros_like(whole)), lambda: whole)
            places = tf.stack([tf.range(tf.size(labels)), labels], axis=1)
            return tf.tensor_scatter_nd_add(whole, places, smoothing * upstream)

        return tf.where(own > -infinity, plain + smoothing * (own - mean), infinity), backward

    return losses(logits)


def _open_mean(logits):
    """`(mean, share, blocked)` of logits [N, V]: the mean of those above -inf, 1 over their number, is any one not?"""
    vocab_size = logits.shape[-1]
    total = tf.reduce_sum(logits, axis=-1)
    blocked = tf.reduce_any(tf.equal(total, tf.constant(-float("inf"), logits.dtype)))

    def of_some():
        is_open = logits > tf.constant(-float("inf"), logits.dtype)
        share = 1 / tf.maximum(tf.reduce_sum(tf.cast(is_open, logits.dtype), axis=-1), 1)
        return tf.reduce_sum(tf.where(is_open, logits, tf.zeros_like(logits)), axis=-1) * share, share

    mean, share = tf.cond(blocked, of_some, lambda: (total / vocab_size, tf.ones_like(total) / vocab_size))
    return mean, share, blocked


def token_weights(labels, logits, sample_weight=None, ignore_id=0):
    """How much each token counts: its sample weight where it is real, 0 elsewhere.

    The implicit mask that Keras hangs on the logits, explicit weights and `ignore_id` often say the same thing twice;
    they are intersected, so that saying it twice changes nothing.

    Args:
        labels: integers [B, T].
        logits: floats [B, T, V], with or without an implicit mask [B, T].
        sample_weight: None, or numbers of shape [B, T], [B, 1] or [B].
        ignore_id: the label of padding; None where labels hold no padding.

    Returns:
        [B, T] in the dtype of `token_losses`.
    """
    weights = tf.ones(tf.shape(labels), accumulation_dtype(logits.dtype))
    if sample_weight is not None:
        sample_weight = tf.cast(sample_weight, weights.dtype)
        if sample_weight.shape.rank == labels.shape.rank + 1 and sample_weight.shape[-1] == 1:
            sample_weight = tf.squeeze(sample_weight, -1)  # Keras appends an axis to weights of rank 1
        while sample_weight.shape.rank < labels.shape.rank:
            sample_weight = sample_weight[..., None]
        weights *= sample_weight
    if ignore_id is not None:
        weights = tf.where(labels == ignore_id, tf.zeros_like(weights), weights)
    mask = getattr(logits, "_keras_mask", None)
    if mask is not None:
        weights = tf.where(tf.cast(mask, tf.bool), weights, tf.zeros_like(weights))
    return weights


def _where_counted(weights, values):
    """The values [B, T], and 0 for tokens without a weight, whatever stands there."""
    return tf.where(tf.not_equal(weights, 0), values, tf.zeros_like(values))


def _labels_and_logits(y_true, y_pred):
    """Labels as int32 and logits as a tensor, with the implicit mask kept; one error for shapes that do not fit."""
    mask = getattr(y_pred, "_keras_mask", None)
    labels = tf.cast(y_true, tf.int32)
    logits = tf.convert_to_tensor(y_pred)
    if mask is not None:
        logits._keras_mask = mask
    if logits.shape.rank != labels.shape.rank + 1:
        raise ValueError(
            "Token losses expect labels [B, T] and logits [B, T, V]. "
            f"Got labels {labels.shape} and logits {logits.shape}; labels are token ids, not one-hot vectors."
        )
    return labels, logits


def _check_smoothing(label_smoothing):
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1). Got {label_smoothing}; usual values are 0.0 and 0.1.")
    return float(label_smoothing)


@keras.saving.register_keras_serializable("keras_attention")
class MaskedCrossentropy(keras.losses.Loss):
    """Label-smoothed cross-entropy averaged over the real tokens of a batch.

    Under a `tf.distribute` strategy the number of tokens is summed over all replicas before the division. Keras adds up
    the gradients of the replicas, so the update is that of the token mean of the whole global batch, also when the
    replicas hold different numbers of tokens. A batch without a real token has loss 0 and zero gradients.

    Args:
        label_smoothing: mass of the target distribution spread over the vocabulary, in [0, 1).
        ignore_id: label of padding; None when every label is real.

    Call arguments:
        y_true: token ids [B, T], any integer or float dtype.
        y_pred: logits [B, T, V]; half precisions are raised to float32. Its implicit mask is honoured.
        sample_weight: None, [B, T], [B, 1] or [B].

    Returns:
        Scalar, float32 (float64 for float64 logits): sum(weight * loss) / sum(weight).

    Raises:
        ValueError: the ranks of labels and logits do not fit, or `label_smoothing` is out of range.
    """

    def __init__(self, label_smoothing=0.0, ignore_id=0, name="masked_crossentropy", **kwargs):
        # Any other reduction would divide by positions; the one that Keras calls so is what is computed here.
        kwargs.setdefault("reduction", "mean_with_sample_weight")
        super().__init__(name=name, **kwargs)
        if self.reduction != "mean_with_sample_weight":
            raise ValueError(
                f"MaskedCrossentropy averages over real tokens only. Got reduction={self.reduction!r}; leave it out, "
                "or use `keras_attention.training.optimization.losses.token_losses` for the loss of each token."
            )
        self.label_smoothing = _check_smoothing(label_smoothing)
        self.ignore_id = ignore_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Replaces Keras' own __call__, which would multiply by the implicit mask a second time, divide by the number of
        # positions and turn ids into floats.
        labels, logits = _labels_and_logits(y_true, y_pred)
        with tf.name_scope(self.name):
            weights = token_weights(labels, logits, sample_weight, self.ignore_id)
            losses = _where_counted(weights, token_losses(labels, logits, self.label_smoothing))
            count = replicas.summed(tf.reduce_sum(weights))
            return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.stop_gradient(count))

    def call(self, y_true, y_pred):
        """The loss of each token, [B, T], 0 where there is padding."""
        labels, logits = _labels_and_logits(y_true, y_pred)
        weights = token_weights(labels, logits, None, self.ignore_id)
        return _where_counted(weights, token_losses(labels, logits, self.label_smoothing))

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing, "ignore_id": self.ignore_id}


class _TokenMean(keras.metrics.Metric):
    """Mean over all real tokens since the last reset, over batches and replicas alike."""

    def __init__(self, name, ignore_id=0, **kwargs):
        super().__init__(name=name, **kwargs)
        self.ignore_id = ignore_id
        # Summed over replicas when read, like every Keras metric variable; so the mean is of tokens, not of means.
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def token_values(self, labels, logits):
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, logits = _labels_and_logits(y_true, y_pred)
        weights = token_weights(labels, logits, sample_weight, self.ignore_id)
        values = _where_counted(weights, self.token_values(labels, logits))
        self.total.assign_add(tf.cast(tf.reduce_sum(weights * values), self.total.dtype))
        self.count.assign_add(tf.cast(tf.reduce_sum(weights), self.count.dtype))

    def result(self):
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.total), tf.convert_to_tensor(self.count))

    def get_config(self):
        return {**super().get_config(), "ignore_id": self.ignore_id}


@keras.saving.register_keras_serializable("keras_attention")
class TokenLoss(_TokenMean):
    """The training loss as a mean over all real tokens of the epoch.

    Keras' own `loss` is a mean of batch means weighted by rows. Under its default name, "loss", this metric takes that
    one's place in the logs. It repeats the expressions of `MaskedCrossentropy` on the same tensors, which TensorFlow
    merges in a graph: it costs nothing beyond two sums.

    Args:
        label_smoothing: that of the loss.
        ignore_id: label of padding, or None.
    """

    def __init__(self, label_smoothing=0.0, ignore_id=0, name="loss", **kwargs):
        super().__init__(name=name, ignore_id=ignore_id, **kwargs)
        self.label_smoothing = _check_smoothing(label_smoothing)

    def token_values(self, labels, logits):
        return token_losses(labels, logits, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_attention")
class Perplexity(_TokenMean):
    """exp of the mean cross-entropy (without smoothing) over all real tokens since the last reset.

    Args:
        ignore_id: label of padding, or None.
    """

    def __init__(self, ignore_id=0, name="perplexity", **kwargs):
        super().__init__(name=name, ignore_id=ignore_id, **kwargs)

    def token_values(self, labels, logits):
        return token_losses(labels, logits)

    def result(self):
        return tf.exp(super().result())


@keras.saving.register_keras_serializable("keras_attention")
class MaskedAccuracy(_TokenMean):
    """Share of real tokens whose label has the largest logit (the first of equals, as argmax has it).

    Args:
        ignore_id: label of padding, or None.
    """

    def __init__(self, ignore_id=0, name="accuracy", **kwargs):
        super().__init__(name=name, ignore_id=ignore_id, **kwargs)

    def token_values(self, labels, logits):
        right = tf.argmax(logits, axis=-1, output_type=tf.int32) == labels
        return tf.cast(right, accumulation_dtype(logits.dtype))
