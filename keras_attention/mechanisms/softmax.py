"""Softmax attention over all pairs, in its dense form."""

import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product, rolling_kv_cache
from keras_attention.ops.dense.dropout import dropped


@register("softmax")
class SoftmaxAttention(Mechanism):
    """softmax(q k^T * scale) v for every pair of query and key: exact, dense, the reference for all others.

    Choose it for lengths up to about a thousand, and wherever scores are to be returned. Time and memory O(T S).

    Args:
        cache: what a decoding state keeps. `"full"`: all keys and values. `"rolling"`: those of the last `max_length`
            positions, in a ring that has no end: beyond that length a token sees itself and the max_length - 1 tokens
            before it, which differs from one pass over the whole text. Free masks, biases, scores and `score_clip` are
            refused there.
        score_clip: scores (bias included) are kept within [-score_clip, score_clip]; the documents' 5.3 suggests 50
            against losses that oscillate. A score beyond has no gradient. None = no limit.

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    supports = Supports(
        grouped=True, relative=True, residual=True, paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762"
    )

    def __init__(self, cache="full", score_clip=None, **kwargs):
        super().__init__(**kwargs)
        self.cache = checks.one_of("cache", cache, ("full", "rolling"))
        self.score_clip = None if score_clip is None else checks.positive_number("score_clip", score_clip)
        if cache == "rolling" and score_clip is not None:
            self.refuse(f"score_clip={score_clip} with cache='rolling'", "cache='full'")

    def attend(self, q, k, v, *, training=False, **options):
        return attend_to_all(q, k, v, score_clip=self.score_clip, **options)

    def init_state(self, owner, batch_size, dtype, max_length=None):
        if self.cache == "full":
            return super().init_state(owner, batch_size, dtype, max_length)
        if max_length is None:
            raise ValueError("cache='rolling' keeps a fixed number of positions: give max_length=.")
        return rolling_kv_cache.init(batch_size, owner.num_kv_heads, max_length, owner.head_dim, owner.head_dim, dtype)

    def attend_state(self, q, k, v, *, state, valid, mask, expand, **kwargs):
        if self.cache == "full":
            return super().attend_state(q, k, v, state=state, valid=valid, mask=mask, expand=expand, **kwargs)
        for what, wanted in (
            ("a free mask (mask=)", mask.free is not None),
            ("an additive bias (bias=)", kwargs.get("bias") is not None),
            ("return_attention_scores=True", kwargs.get("return_scores")),
            ("previous_scores=", kwargs.get("previous_scores") is not None),
            ("return_raw_scores=True", kwargs.get("return_raw_scores")),
        ):
            if wanted:
                self.refuse(f"{what} while decoding with cache='rolling'", "cache='full'")
        rate, seed = kwargs.get("dropout") or (0.0, None)
        return rolling_kv_cache.attend(
            q,
            k,
            v,
            state,
            padding_mask=valid,
            distance_bias=kwargs.get("distance_bias"),
            scale=kwargs["scale"],
            dropout_rate=rate,
            dropout_seed=seed,
        )

    def capacity(self, state):
        return super().capacity(state) if self.cache == "full" else None


def attend_to_all(
    q,
    k,
    v,
    *,
    mask,
    scale,
    bias=None,
    dropout=None,
    return_scores=False,
    distance_bias=None,
    previous_scores=None,
    return_raw_scores=False,
    score_clip=None,
    weigh=dot_product.masked_softmax,
):
    """Dense attention with weights `weigh(scores, allowed)`; the other arguments are those of `Mechanism.attend`.

    Scores are clipped last, after bias and previous scores. k and v may have fewer heads than q: query head h reads key
    head h // (H / Hkv).
    """
    kv_heads = k.shape[1]
    grouped = q.shape[1] != kv_heads
    lengths = checks.sizes(q)[2], checks.sizes(k)[2]
    allowed = mask.dense(*lengths)
    if distance_bias is not None:
        by_distance = distance_bias(mask.distance(*lengths))
        # Each in the scores' dtype: a float64 bias keeps its digits.
        dtype = dot_product.accumulation_dtype(q.dtype)
        bias = by_distance if bias is None else tf.cast(by_distance, dtype) + tf.cast(bias, dtype)
    if grouped:
        # Query heads that share a key head become one more axis, along which keys broadcast: none is copied.
        k, v = k[:, :, None], v[:, :, None]
        q, allowed, bias, previous_scores = (_by_group(x, kv_heads) for x in (q, allowed, bias, previous_scores))
    raw, _ = dot_product.biased_scores(q, k, scale)
    if previous_scores is not None:
        raw += tf.cast(previous_scores, raw.dtype)
    scores, allowed = dot_product.with_bias(raw, bias, allowed)
    if score_clip is not None:
        scores = tf.clip_by_value(scores, -score_clip, score_clip)
    weights = dropped(weigh(scores, allowed), *(dropout or (0.0, None)))
    output = dot_product.weighted_sum(weights, v)
    results = [output]
    if return_scores:
        results.append(tf.cast(weights, q.dtype))
    if return_raw_scores:
        results.append(raw)
    if grouped:
        results = [tf.concat(tf.unstack(x, axis=1), axis=1) for x in results]
    return tuple(results) if len(results) > 1 else results[0]


def _by_group(x, kv_heads):
    """[B, H|1, T, S] -> [B, Hkv, H/Hkv, T, S] (or with 1 in place of both).

    By split and stack: tf2onnx writes a reshape with two unknown sizes so that an empty batch fails in onnxruntime.
    """
    if x is None or x.shape[1] == 1:
        return x if x is None else x[:, :, None]
    return tf.stack(tf.split(x, kv_heads, axis=1), axis=1)
