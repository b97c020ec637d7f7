"""Exact softmax attention by tiles, in memory that grows with the length and not with its square."""

import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.ops.basics import checks
from keras_attention.ops.dense.blockwise import blockwise_attention


@register("blockwise")
class BlockwiseAttention(Mechanism):
    """The same numbers as `softmax`, without ever holding the scores of all pairs.

    Choose it for long sequences, and wherever training does not fit. Time O(T S), half of it under the causal flag,
    where tiles above the diagonal are skipped; memory O(T + S), the gradient included. The weights exist one tile at a
    time, so there are no scores to return.

    Args:
        query_block_size, key_block_size: sides of a tile; chosen from the lengths by default.
        xla: True compiles with XLA, False never does. By default it compiles in training only, so that exported models
            run where there is no XLA.

    Reference: Dao et al., "FlashAttention", 2022, https://arxiv.org/abs/2205.14135; Rabe and Staats, 2021,
    https://arxiv.org/abs/2112.05682
    """

    supports = Supports(
        scores=False,
        grouped=True,
        memory="T + S",
        paper="Dao et al. 2022, https://arxiv.org/abs/2205.14135",
    )

    def __init__(self, query_block_size=None, key_block_size=None, xla=None, **kwargs):
        super().__init__(**kwargs)
        for name, size in (("query_block_size", query_block_size), ("key_block_size", key_block_size)):
            if size is not None:
                checks.positive_int(name, size)
        self.query_block_size = query_block_size
        self.key_block_size = key_block_size
        self.xla = checks.one_of("xla", xla, (None, True, False))

    def attend(self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False):
        if return_scores:
            self.refuse("return_attention_scores=True", "mechanism='softmax'")
        return attend_by_tiles(
            q,
            k,
            v,
            mask=mask,
            scale=scale,
            bias=bias,
            dropout=dropout,
            training=training,
            query_block_size=self.query_block_size,
            key_block_size=self.key_block_size,
            xla=self.xla,
        )


def attend_by_tiles(q, k, v, *, mask, scale, bias=None, dropout=None, training=False, **tiling):
    """`blockwise_attention` with the arguments of `Mechanism.attend`; `tiling` are its block sizes and `xla`."""
    rate, seed = dropout or (0.0, None)
    attended = blockwise_attention(
        q,
        k,
        v,
        mask.free,
        bias=bias,
        use_causal_mask=mask.causal,
        padding_mask=mask.padding,
        query_positions=mask.query_positions if mask.causal else None,
        scale=scale,
        dropout_rate=rate,
        dropout_seed=seed,
        training=training,
        **tiling,
    )
    if mask.query_padding is None:
        return attended
    return tf.where(mask.query_padding[:, None, :, None], attended, tf.zeros([], attended.dtype))
