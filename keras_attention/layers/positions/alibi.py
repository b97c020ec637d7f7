"""ALiBi: scores that fall linearly with the distance."""

import tensorflow as tf

from keras_attention.layers.positions.schemes import DistanceScheme, register
from keras_attention.ops.basics import positions
from keras_attention.ops.dense.dot_product import accumulation_dtype


@register("alibi")
class ALiBi(DistanceScheme):
    """Adds -slope * |distance| to the scores, with a slope for each head; nothing is learned.

    Under a causal mask this is the paper's form; without one both sides fall alike (symmetric). Choose it for models
    that must read longer texts than they were trained on.

    Args:
        num_heads: H. Counts that are no power of two take every second slope of the next one, as the authors do.

    Call arguments:
        q_length, k_length: T and S, ints or scalar tensors; S = T by default. The last query stands at the last key.

    Returns:
        float32 [H, T, S] (float64 under that policy), to be added to the scores.

    Reference: Press et al., "Train Short, Test Long", 2022, https://arxiv.org/abs/2108.12409
    """

    def __init__(self, num_heads, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.slopes = positions.alibi_slopes(self.num_heads)
        self.built = True

    def bias_at(self, distance):
        return positions.alibi_bias(distance, self.slopes, accumulation_dtype(tf.as_dtype(self.compute_dtype)))
