"""Scaled dot-product attention in its dense form: scores for every pair of query and key."""

import math

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense.dropout import dropped


def scaled_dot_product_attention(
    q,
    k,
    v,
    mask=None,
    *,
    bias=None,
    use_causal_mask=False,
    scale=None,
    temperature=1.0,
    dropout_rate=0.0,
    dropout_seed=None,
    return_attention_scores=False,
):
    """softmax(q k^T / (temperature sqrt(D))) v, the documents' function of that name with its faults mended.

    Cost: time and memory O(T S). What differs from the documents: the size of a head is never cast to float32 under
    another dtype; masks are applied by select, once, so that half precision and several masks together stay finite; a
    row that may attend to nothing is zero (they gave the mean of v); scores and softmax are computed in at least
    float32 whatever the inputs. A larger temperature flattens the weights (they call the scaling "sharper").

    Args:
        q: [..., T, D].
        k: [..., S, D], leading axes as q's or broadcastable.
        v: [..., S, Dv].
        mask: broadcastable to [..., T, S]; with q [B, H, T, D], rank 3 is [B, T, S], as everywhere here. Boolean:
            True = may attend. Floating: the documents' sense, 1 = blocked (a warning says so); other floating values
            and integers are refused.
        bias: floating, broadcastable to [..., T, S], added to the scaled scores; -inf counts as blocked.
        use_causal_mask: key s is open to query t where s <= t + S - T (bottom-right alignment).
        scale: factor on the scores in place of 1 / sqrt(D).
        temperature: the scores are divided by it.
        dropout_rate: share of weights set to zero (the others grow by 1 / (1 - rate)); 0 at inference.
        dropout_seed: int32 [2], seed of the dropout mask; required with a rate above 0.
        return_attention_scores: also return the weights.

    Returns:
        [..., T, Dv] in q's dtype; with `return_attention_scores` also the weights [..., T, S] in that dtype (after
        dropout).

    Raises:
        ValueError: for shapes that do not fit or a dropout rate without a seed; TypeError for integer masks.

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """
    q, k, v = tf.convert_to_tensor(q), tf.convert_to_tensor(k), tf.convert_to_tensor(v)
    check_qkv(q, k, v)
    allowed = None if mask is None else masks.as_boolean(mask)
    if allowed is not None and (q.shape.rank, allowed.shape.rank) == (4, 3):
        # As the layer and `blockwise_attention` read it: broadcasting would take its first axis for heads.
        allowed = allowed[:, None]
    if use_causal_mask:
        t, s = checks.sizes(q)[-2], checks.sizes(k)[-2]
        allowed = masks.joined(allowed, masks.causal_rows(t, s))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores, allowed = biased_scores(q, k, scale / checks.positive_number("temperature", temperature), bias, allowed)
    weights = dropped(masked_softmax(scores, allowed), dropout_rate, dropout_seed)
    output = weighted_sum(weights, v)
    return (output, tf.cast(weights, q.dtype)) if return_attention_scores else output


def check_qkv(q, k, v):
    """Raises where q [..., T, D], k [..., S, D] and v [..., S, Dv] do not fit together."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating:
        raise TypeError(
            f"q, k and v must share one floating dtype. Got {q.dtype.name}, {k.dtype.name}, {v.dtype.name}."
        )
    if min(q.shape.rank, k.shape.rank, v.shape.rank) < 2 or q.shape[-1] is None:
        raise ValueError(f"q, k and v must have shape [..., length, depth] with a known depth. Got {shapes}.")
    if not q.shape[-1:].is_compatible_with(k.shape[-1:]) or not k.shape[-2:-1].is_compatible_with(v.shape[-2:-1]):
        raise ValueError(f"q and k must share their last axis, k and v their length. Got {shapes}.")


def accumulation_dtype(dtype):
    """float64 for float64, float32 for everything below: the dtype of scores, softmax and sums."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def biased_scores(q, k, scale, bias=None, allowed=None):
    """The scores q k^T * scale + bias in at least float32, and the mask with what the bias blocks taken out.

    Half inputs are widened before the product. Products of half numbers are exact in float32 (and in the TF32 format
    that GPUs use for it), so that no bit of a large score is lost; a product in half would round it to 11 bits (8 in
    bfloat16) before the exponential.
    """
    dtype = accumulation_dtype(q.dtype)
    # tf.cast would take a Python number through float32 on its way to float64.
    scale = tf.constant(scale, dtype) if isinstance(scale, int | float) else tf.cast(scale, dtype)
    scores = tf.matmul(tf.cast(q, dtype) * scale, tf.cast(spread(k, q), dtype), transpose_b=True)
    return with_bias(scores, bias, allowed)


def with_bias(scores, bias, allowed):
    """The scores with a bias added (None adds nothing), and the mask with what the bias blocks taken out."""
    if bias is None:
        return scores, allowed
    finite, open_ = masks.split_bias(bias, scores.dtype)
    return scores + finite, masks.joined(allowed, open_)


def masked_softmax(scores, allowed=None):
    """Softmax over the last axis of what is allowed; zero weights, with zero gradient, in rows without any."""
    if allowed is None:
        return _softmax(scores)
    # Half of the range below: a finite number leaves no inf - inf, and no score comes near it.
    lowest = tf.constant(-0.5 * np.finfo(scores.dtype.as_numpy_dtype).max, scores.dtype)
    weights = _softmax(tf.where(allowed, scores, lowest))
    # Masked weights are exactly 0 already unless the whole row is masked, where softmax gave a uniform row.
    return tf.where(tf.reduce_any(allowed, axis=-1, keepdims=True), weights, tf.zeros([], scores.dtype))


def _softmax(scores):
    """tf.nn.softmax over the last axis for any rank: oneDNN's, which TensorFlow uses on many CPUs, takes five axes."""
    if scores.shape.rank <= 5:
        return tf.nn.softmax(scores)
    shape = checks.sizes(scores)
    return tf.reshape(tf.nn.softmax(tf.reshape(scores, [-1, *shape[-2:]])), shape)


def weighted_sum(weights, v):
    """weights [..., T, S] @ v [..., S, Dv], summed in the weights' dtype and returned in v's."""
    return tf.cast(tf.matmul(weights, tf.cast(spread(v, weights), weights.dtype)), v.dtype)


def spread(x, beside):
    """x for a product `beside @ x`: with the axes of `beside` [B, H, ...] where it has none of its own or ones.

    TensorFlow's product on a CPU (2.21, with oneDNN) writes beyond its memory where the right matrix of such a product
    is to be repeated along the first of two leading axes: wrong numbers, or a crash. Repeated by hand it is right.
    """
    first = x.shape[0] if x.shape.rank == 4 else 1
    if beside.shape.rank != 4 or first != 1 or beside.shape[0] == 1:
        return x
    return tf.broadcast_to(x, [*checks.sizes(beside)[:2], *checks.sizes(x)[-2:]])
