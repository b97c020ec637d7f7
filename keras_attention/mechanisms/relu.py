"""Attention with ReLU in place of softmax."""

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.mechanisms.softmax import attend_to_all
from keras_attention.ops.basics import checks
from keras_attention.ops.dense import relu


@register("relu")
class ReluAttention(Mechanism):
    """relu(scores) / (number of keys that may be attended), summed over the values: the documents' 4.1 (3).

    Weights are not normalized to 1, so that a query may take much, little or nothing, and no single key can crowd out
    the others. Choose it where softmax weights pile up on one place. Everything else is as with softmax: dense, time
    and memory O(T S). Scores cannot explode through an exponential, but they can grow: keep a norm before the layer.

    Args:
        score_clip: scores are kept within [-score_clip, score_clip]; None = no limit.

    Reference: Wortsman et al., "Replacing softmax with ReLU in Vision Transformers", 2023,
    https://arxiv.org/abs/2309.08586 (they divide by the length; here by the keys that are open to the query, so that
    padding and causality change no scale)
    """

    supports = Supports(
        grouped=True, relative=True, residual=True, paper="Wortsman et al. 2023, https://arxiv.org/abs/2309.08586"
    )

    def __init__(self, score_clip=None, **kwargs):
        super().__init__(**kwargs)
        self.score_clip = None if score_clip is None else checks.positive_number("score_clip", score_clip)

    def attend(self, q, k, v, *, training=False, **options):
        return attend_to_all(q, k, v, score_clip=self.score_clip, weigh=relu.masked_relu, **options)
