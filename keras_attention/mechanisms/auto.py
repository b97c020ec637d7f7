"""Exact softmax attention, dense or by tiles, whichever suits the lengths."""

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.mechanisms.blockwise import attend_by_tiles
from keras_attention.mechanisms.softmax import attend_to_all
from keras_attention.ops.basics import checks

# A score matrix of more than 16 MB leaves a processor's cache, and from about there tiles are the faster form, forward
# and with the gradient: 1.5 to 3 times at twice this size on two CPU cores (`python -m benchmarks.attention`).
DENSE_BYTES = 2**24
# Fewer queries or keys than this are one or two tiles, in which there is nothing to gain.
SHORT = 256
# Options of the dense form alone.
ALL_PAIRS = ("return_scores", "return_raw_scores", "previous_scores", "distance_bias")


@register("auto", listed=False)
class AutoAttention(Mechanism):
    """`softmax` where all scores fit into little memory, `blockwise` elsewhere: the same numbers, weights and states.

    The choice is made while a graph is traced, from static shapes alone, so that it is the same on every machine. Dense
    attends where the length of queries or keys is not known, where one of them is below 256, where the float32 scores
    of one layer, 4 B H T S bytes, are no more than `dense_bytes` (an unknown batch counts as one row), and where scores
    are to be returned or carried, or are biased by distance (`positions="alibi"` or `"relative"`). Ask
    `MultiHeadAttention.chosen_mechanism` which it is.

    Args:
        dense_bytes: the most bytes of scores for which the dense form is taken; 0 takes tiles wherever they can be,
            a number beyond all memory never.

    Reference: those of `softmax` and `blockwise`.
    """

    supports = Supports(
        grouped=True,
        relative=True,
        residual=True,
        memory="T*S up to `dense_bytes`, then T + S",
        paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Dao et al. 2022, https://arxiv.org/abs/2205.14135",
    )

    def __init__(self, dense_bytes=DENSE_BYTES, **kwargs):
        super().__init__(**kwargs)
        self.dense_bytes = checks.nonnegative_int("dense_bytes", dense_bytes)

    def chosen(self, batch, heads, queries, keys):
        if queries is None or keys is None or min(queries, keys) < SHORT:
            return "softmax"
        return "softmax" if 4 * (batch or 1) * heads * queries * keys <= self.dense_bytes else "blockwise"

    def attend(self, q, k, v, *, training=False, **options):
        batch, heads, queries, _ = q.shape
        # What needs the scores of all pairs, or is as large as they are.
        all_pairs = any(options.get(name) is not None and options.get(name) is not False for name in ALL_PAIRS)
        if all_pairs or self.chosen(batch, heads, queries, k.shape[2]) == "softmax":
            return attend_to_all(q, k, v, **options)
        options = {name: option for name, option in options.items() if name not in ALL_PAIRS}
        return attend_by_tiles(q, k, v, training=training, **options)
