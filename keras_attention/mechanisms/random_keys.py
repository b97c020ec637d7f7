"""Attention to a few keys drawn at random."""

from keras_attention.mechanisms.base import register
from keras_attention.mechanisms.pattern import Pattern, supports
from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import random_keys


@register("random")
class RandomAttention(Pattern):
    """Softmax attention of each query to `num_keys` keys of the sequence, drawn at random and gathered.

    Any two positions are linked within a few layers, but what is near has no preference: a part of a pattern (BigBird)
    rather than one by itself. Time and memory O(T num_keys). The draw follows from `seed`, the head and the position
    among the real tokens: the same after loading, in every batch and in every runtime. A query with `num_keys` keys or
    fewer to choose from sees them all. Rows of padding are zero.

    Args:
        num_keys: keys per query.
        seed: of the draw. Layers with one seed share one pattern, and so do the blocks of a model.

    Reference: the documents, 5.1; Zaheer et al., "Big Bird", 2020, https://arxiv.org/abs/2007.14062 (its random part)
    """

    supports = supports(
        state="kv",
        time="T*num_keys",
        memory="T*num_keys*D",
        paper="Zaheer et al. 2020, https://arxiv.org/abs/2007.14062",
    )

    def __init__(self, num_keys=64, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.num_keys = checks.positive_int("num_keys", num_keys)
        self.seed = checks.nonnegative_int("seed", seed)

    def pattern(self, q, k, v, *, padding_mask, **options):
        return random_keys.random_attention(
            q,
            k,
            v,
            num_keys=self.num_keys,
            seed=self.seed,
            padding_mask=padding_mask,
            query_padding=padding_mask,
            **options,
        )

    def stored(self, q, k, v, *, key, query, **options):
        return random_keys.random_attention(
            q, k, v, num_keys=self.num_keys, seed=self.seed, query_positions=query, use_causal_mask=True, **options
        )
