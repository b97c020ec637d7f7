"""Nystrom attention: softmax attention rebuilt from landmarks."""

import keras

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.ops.basics import checks, masks
from keras_attention.ops.kernels import nystrom


@register("nystrom")
class NystromAttention(Mechanism):
    """Softmax attention rebuilt from M = `num_landmarks` means of neighbouring tokens; time and memory O(T M).

    Choose it for encoders of long sequences. With no more tokens than landmarks it is softmax attention, up to the
    iterative pseudo-inverse. A landmark is a mean over the whole sequence's runs, so that nothing causal can be built
    on it.

    Args:
        num_landmarks: M.
        iterations: steps of the pseudo-inverse; 6 are the paper's, 12 invert a landmark matrix of condition number
            20 to float32.
        kernel_size: None, or the odd width of a convolution of the values along the sequence, one kernel a head, added
            to the output (the paper's local path; 33 there).

    Reference: Xiong et al., "Nystromformer", 2021, https://arxiv.org/abs/2102.03902
    """

    supports = Supports(
        causal=False,
        cross=False,
        free_mask=False,
        bias=False,
        scores=False,
        dropout=False,
        # A mean of vectors that were turned by different angles says little.
        rotary=None,
        state=None,
        time="T*M*D",
        memory="T*M",
        paper="Xiong et al. 2021, https://arxiv.org/abs/2102.03902",
    )

    def __init__(self, num_landmarks=64, iterations=6, kernel_size=None, **kwargs):
        super().__init__(**kwargs)
        self.num_landmarks = checks.positive_int("num_landmarks", num_landmarks)
        self.iterations = checks.positive_int("iterations", iterations)
        self.kernel_size = None if kernel_size is None else checks.positive_int("kernel_size", kernel_size)
        if self.kernel_size is not None and self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that it has a middle. Got kernel_size={kernel_size}.")

    def build_heads(self, owner):
        self.kernel = None
        if self.kernel_size is not None:
            # Each head has one input and one output: Glorot's fan is the width alone.
            self.kernel = self.add_weight(
                name="kernel",
                shape=(self.kernel_size, owner.num_heads),
                initializer=keras.initializers.RandomNormal(stddev=self.kernel_size**-0.5),
                autocast=False,
            )

    def attend(self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False):
        return nystrom.nystrom_attention(
            q,
            k,
            v,
            num_landmarks=self.num_landmarks,
            iterations=self.iterations,
            kernel=self.kernel,
            padding_mask=mask.padding,
            # One sequence: a padded key is a padded query and must stay out of the query landmarks too.
            query_mask=masks.joined(mask.padding, mask.query_padding),
            scale=scale,
        )
