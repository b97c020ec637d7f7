"""Rotary positions: queries and keys turned by where they stand."""

import tensorflow as tf

from keras_attention.layers.positions.schemes import PositionScheme, register
from keras_attention.ops.basics import checks, positions


@register("rotary")
class RotaryEmbedding(PositionScheme):
    """Turns pairs of features of queries and keys by angles that grow with the position (RoPE).

    The product of a turned query and a turned key depends on their distance alone. Nothing is learned, nothing is added
    to the embeddings, and there is no longest position, although what lies beyond the trained lengths was never seen.

    In `MultiHeadAttention(positions="rotary")` positions count real tokens: padding takes none, wherever it stands, and
    a decoding state goes on counting. Keys are kept turned.

    Args:
        rotary_dim: how many features of each head are turned, the first ones; an even number, all by default.
        base: of the frequencies; larger ones for longer texts.
        layout: which features make a pair. "half": i and i + rotary_dim / 2, as GPT-NeoX and Llama have it;
            "interleaved": 2 i and 2 i + 1, as in the paper and GPT-J. Trained weights go with one of them.

    Call arguments:
        x: floating [B, N, T, D], heads of queries or keys.
        positions: integer [T] or [B, T]; 0 .. T - 1 by default.

    Returns:
        [B, N, T, D] in x's dtype.

    Raises:
        ValueError: for an odd number of features, or more than a head has.

    Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864
    """

    acts_on = "heads"

    def __init__(self, rotary_dim=None, base=10000.0, layout="half", **kwargs):
        super().__init__(**kwargs)
        self.rotary_dim = None if rotary_dim is None else checks.positive_int("rotary_dim", rotary_dim)
        self.base = checks.positive_number("base", base)
        self.layout = checks.one_of("layout", layout, positions.LAYOUTS)

    @classmethod
    def for_heads(cls, num_heads, causal):
        return cls()

    def check_heads(self, num_heads, head_dim):
        turned = head_dim if self.rotary_dim is None else self.rotary_dim
        if turned % 2 or turned > head_dim:
            raise ValueError(
                f"Rotary positions turn pairs of a head's {head_dim} features: rotary_dim must be even and at most "
                f"{head_dim}. Got {turned}; use RotaryEmbedding(rotary_dim={head_dim - head_dim % 2 or 2}) or another "
                "head_dim."
            )

    def build(self, x_shape):
        if x_shape[-1] is None:
            raise ValueError(f"RotaryEmbedding needs a known head size. Got an input of shape {tuple(x_shape)}.")
        self.check_heads(None, x_shape[-1])

    def call(self, x, positions=None):
        if positions is None:
            positions = tf.range(checks.sizes(x)[2])
        return self.rotate(x, positions)

    def rotate(self, x, places):
        return positions.rotate(x, places, base=self.base, rotary_dim=self.rotary_dim, layout=self.layout)

    def compute_output_shape(self, x_shape, positions_shape=None):
        return x_shape
