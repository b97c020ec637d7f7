"""Softmax attention over all pairs, in its dense form."""

import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.ops import checks, dot_product


@register("softmax")
class SoftmaxAttention(Mechanism):
    """softmax(q k^T * scale) v for every pair of query and key: exact, dense, the reference for all others.

    Choose it for lengths up to about a thousand, and wherever scores are to be returned. Time and memory O(T S).

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    supports = Supports(grouped=True, paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762")

    def attend(self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False):
        batch, heads, t, depth = checks.sizes(q)
        kv_heads, s = checks.sizes(k)[1:3]
        allowed = mask.dense(t, s)
        grouped = heads != kv_heads
        if grouped:
            # Query heads that share a key head become one more axis, along which keys broadcast: none is copied.
            q = tf.reshape(q, [batch, kv_heads, heads // kv_heads, t, depth])
            k, v = k[:, :, None], v[:, :, None]
            allowed, bias = (_by_group(x, kv_heads) for x in (allowed, bias))
        scores, allowed = dot_product.biased_scores(q, k, scale, bias, allowed)
        weights = dot_product.dropped(dot_product.masked_softmax(scores, allowed), *(dropout or (0.0, None)))
        output = dot_product.weighted_sum(weights, v)
        if grouped:
            output = tf.reshape(output, [batch, heads, t, v.shape[-1]])
            weights = tf.reshape(weights, [batch, heads, t, s])
        return (output, tf.cast(weights, q.dtype)) if return_scores else output


def _by_group(x, kv_heads):
    """[B, H|1, T, S] -> [B, Hkv, H/Hkv, T, S] (or with 1 in place of both)."""
    if x is None or x.shape[1] == 1:
        return x if x is None else x[:, :, None]
    b, heads, t, s = checks.sizes(x)
    return tf.reshape(x, [b, kv_heads, heads // kv_heads, t, s])
