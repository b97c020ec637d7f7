"""The retentive network: a language model whose decoding costs the same for every token."""

import keras

from keras_attention.models.text.decoder_lm import DecoderLM


@keras.saving.register_keras_serializable("keras_attention")
class RetNet(DecoderLM):
    """`DecoderLM` with the blocks of the RetNet paper: retention, gelu, and no positions beside retention's own.

    Choose it to generate long texts: a decoding state of fixed size, O(d_model^2 / num_heads) a layer, and a cost per
    token that does not grow. Trained in chunks, in memory that grows with the length and not with its square. The
    paper's feed-forward layer is twice as wide as the model, its values twice as wide as its keys; here all heads have
    the size d_model / num_heads, which must be even for the rotary positions.

    The documents' form (a learned decay for each channel, a gate on what enters the memory, LayerNorm):
    `RetNet(..., mechanism=RetentionAttention(decay="learned", gate="memory", norm="layer", rotary=False))`.

    Args:
        vocab_size, d_model, ...: as `DecoderLM`, with other defaults.

    Example:
        >>> RetNet(258, d_model=64, num_heads=2, num_layers=2)(np.ones((2, 7), "int32")).shape
        TensorShape([2, 7, 258])

    Reference: Sun et al., "Retentive Network", 2023, https://arxiv.org/abs/2307.08621
    """

    def __init__(self, vocab_size, *, d_model=256, mlp_dim=None, mechanism="retention", positions="none", **kwargs):
        super().__init__(
            vocab_size,
            d_model=d_model,
            mlp_dim=2 * d_model if mlp_dim is None else mlp_dim,
            mechanism=mechanism,
            positions=positions,
            **kwargs,
        )
