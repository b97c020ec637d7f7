"""Attention limited to a window of neighbours."""

from keras_attention.mechanisms.base import register
from keras_attention.mechanisms.pattern import Pattern, supports
from keras_attention.ops.basics import checks
from keras_attention.ops.dense import rolling_kv_cache
from keras_attention.ops.patterns import windows


@register("local")
class LocalAttention(Pattern):
    """Softmax attention in which a position sees the positions at most `radius` away, itself included.

    That is 2 radius + 1 keys, and radius + 1 (none ahead) with the causal flag. Choose it where what matters is near:
    code, speech, proteins, the lower layers of long texts. Time and memory O(T radius). Distances are counted along the
    sequence as given, padding included; while decoding, along the real tokens.

    The decoding state is a ring of the last radius + 1 keys and values of each row: it has one size however long the
    text gets, and no end (`max_length` plays no part).

    Args:
        radius: farthest distance seen. 256 by default, the documents' value.

    Reference: Beltagy et al., "Longformer: The Long-Document Transformer", 2020, https://arxiv.org/abs/2004.05150
    """

    supports = supports(
        state="rolling",
        time="T*radius",
        memory="T*radius",
        paper="Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
    )

    def __init__(self, radius=256, **kwargs):
        super().__init__(**kwargs)
        self.radius = checks.nonnegative_int("radius", radius)

    def pattern(self, q, k, v, **options):
        return windows.local(q, k, v, radius=self.radius, **options)

    def init_state(self, owner, batch_size, dtype, max_length=None):
        return rolling_kv_cache.init(
            batch_size, owner.num_kv_heads, self.radius + 1, owner.head_dim, owner.head_dim, dtype
        )

    def attend_state(self, q, k, v, *, state, valid, scale, distance_bias=None, dropout=None, **_):
        rate, seed = dropout or (0.0, None)
        return rolling_kv_cache.attend(
            q,
            k,
            v,
            state,
            padding_mask=valid,
            distance_bias=distance_bias,
            scale=scale,
            dropout_rate=rate,
            dropout_seed=seed,
        )

    def capacity(self, state):
        return None
