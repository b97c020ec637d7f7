"""Linformer: attention to learned mixtures of the keys."""

import keras

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.ops.basics import checks
from keras_attention.ops.kernels import linformer


@register("linformer")
class LinformerAttention(Mechanism):
    """Softmax attention to `rank` learned mixtures of the keys and values; time and memory O((T + S) R) for rank R.

    Choose it for encoders whose lengths have a known limit. The weights of a mixture belong to places, counted among
    the real keys: shorter sequences use the first ones, longer ones are refused, and nothing can be causal, because
    every mixture holds the whole sequence.

    Args:
        max_length: the largest number of keys L.
        rank: mixtures R.
        sharing: "heads", one pair of projections for all heads; "key_value", one projection for keys and values of all
            heads; "none", a pair for each head.

    Reference: Wang et al., "Linformer", 2020, https://arxiv.org/abs/2006.04768
    """

    supports = Supports(
        causal=False,
        free_mask=False,
        bias=False,
        scores=False,
        dropout=False,
        # Mixtures of keys from all places have no position.
        rotary=None,
        state=None,
        time="(T+S)*R*D",
        memory="(T+S)*R",
        paper="Wang et al. 2020, https://arxiv.org/abs/2006.04768",
    )

    def __init__(self, max_length=2048, rank=128, sharing="heads", **kwargs):
        super().__init__(**kwargs)
        self.max_length = checks.positive_int("max_length", max_length)
        self.rank = checks.positive_int("rank", rank)
        self.sharing = checks.one_of("sharing", sharing, ("heads", "key_value", "none"))

    @classmethod
    def for_grid(cls, rows, columns, num_prefix_tokens):
        length = num_prefix_tokens + rows * columns
        return cls(max_length=length, rank=min(128, length))

    def build_heads(self, owner):
        shape = (self.max_length, self.rank)
        shape = (owner.num_heads, *shape) if self.sharing == "none" else shape
        # Variance 1 / R, as in the paper: products of mixtures then have the expectation of products of sequences.
        initializer = keras.initializers.RandomNormal(stddev=self.rank**-0.5)
        self.key_rows = self.add_weight(name="key_rows", shape=shape, initializer=initializer, autocast=False)
        self.value_rows = self.key_rows
        if self.sharing != "key_value":
            initializer = keras.initializers.RandomNormal(stddev=self.rank**-0.5)
            self.value_rows = self.add_weight(name="value_rows", shape=shape, initializer=initializer, autocast=False)

    def attend(self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False):
        return linformer.linformer_attention(
            q,
            k,
            v,
            self.key_rows,
            self.value_rows,
            padding_mask=mask.padding,
            query_mask=mask.query_padding,
            scale=scale,
        )
