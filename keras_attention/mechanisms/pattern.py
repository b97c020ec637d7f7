"""What the mechanisms that let a query see only some keys of its own sequence have in common."""

import dataclasses

import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism, Supports

PATTERN = Supports(cross=False, free_mask=False, bias=False, scores=False, state=None)


def supports(**differences):
    """A declaration that differs from that of most patterns: one sequence, padding and the causal flag, no state."""
    return dataclasses.replace(PATTERN, **differences)


class Pattern(Mechanism):
    """A mechanism whose subclass gives `pattern` in place of `attend`, and so need not unpack masks and dropout."""

    def pattern(self, q, k, v, *, padding_mask, use_causal_mask, scale, dropout_rate, dropout_seed, **projected):
        """q, k, v [B, H, T, D], padding_mask boolean [B, T] or None -> [B, H, T, D]."""
        raise NotImplementedError

    def attend(
        self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False, **projected
    ):
        rate, seed = dropout or (0.0, None)
        out = self.pattern(
            q,
            k,
            v,
            padding_mask=mask.padding,
            use_causal_mask=mask.causal,
            scale=scale,
            dropout_rate=rate,
            dropout_seed=seed,
            **projected,
        )
        if mask.query_padding is None:
            return out
        return tf.where(mask.query_padding[:, None, :, None], out, tf.zeros([], out.dtype))
