"""What every search returns."""

from typing import Any, NamedTuple


class GenerationResult(NamedTuple):
    """Generated tokens and what is known about them, as tensors, or as arrays where the search ran on arrays.

    The three first fields speak about the same tokens: those that were generated, **with** the end token where the
    model gave one and without the start token. So `tokens[..., lengths - 1] == end_id` tells a sentence that ended
    from one that was cut off at its limit, and `scores` counts every token of `tokens`, the end token included.

    Attributes:
        tokens: `[B, N]` int32 from a greedy search, `[B, K, N]` from a beam search with K beams, `pad_id` after the
            `lengths` first ones.
        lengths: `[B]` or `[B, K]` int32, the number of generated tokens.
        scores: `[B]` or `[B, K]` float32. Greedy: the sum of the tokens' log-probabilities (natural logarithm). Beam:
            that sum divided by the length penalty, best first; `-inf`, with length 0, where there are fewer than K
            hypotheses.
        overflow: `[B]` int32, 1 where the model had no usable logits for a row that was still running: they held NaN
            (a full fixed-size decode state), or no finite value. Such a row ends with the tokens it had.
    """

    tokens: Any
    lengths: Any
    scores: Any
    overflow: Any
