"""Attention along the axes of an image or a volume."""

from keras_attention.mechanisms.base import register
from keras_attention.mechanisms.pattern import Pattern, supports
from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import axial


@register("axial")
class AxialAttention(Pattern):
    """Softmax attention along the rows of a grid, then along its columns (and then along its depth).

    Choose it for images and volumes of many positions: time and memory O(T (height + width)). After all passes each
    position has heard from the whole grid. The sequence is the grid in row-major order, after `num_class_tokens` tokens
    that stay outside it: those see everything, and every position sees them in each pass. A sequence of another length
    is refused.

    Args:
        shape: (height, width) or (depth, height, width).
        num_class_tokens: tokens before the grid.

    Reference: Ho et al., "Axial Attention in Multidimensional Transformers", 2019, https://arxiv.org/abs/1912.12180.
    There each axis is a layer of its own; here the passes share one set of projections.
    """

    supports = supports(
        causal=False,
        # Places along a line of text, which a grid is not.
        rotary=None,
        relative=False,
        grid=True,
        time="T*(height+width)",
        memory="T*(height+width)",
        paper="Ho et al. 2019, https://arxiv.org/abs/1912.12180",
    )

    def __init__(self, shape, num_class_tokens=0, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(shape, list | tuple) or len(shape) not in (2, 3):
            raise ValueError(f"shape must be (height, width) or (depth, height, width). Got shape={shape!r}.")
        self.shape = tuple(checks.positive_int("shape", size) for size in shape)
        self.num_class_tokens = checks.nonnegative_int("num_class_tokens", num_class_tokens)

    @classmethod
    def for_grid(cls, rows, columns, num_prefix_tokens):
        return cls((rows, columns), num_class_tokens=num_prefix_tokens)

    def pattern(self, q, k, v, *, use_causal_mask, **options):
        return axial.axial(q, k, v, shape=self.shape, num_class_tokens=self.num_class_tokens, **options)
