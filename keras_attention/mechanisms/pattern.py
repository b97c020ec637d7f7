"""What the mechanisms that let a query see only some keys of its own sequence have in common."""

import dataclasses

import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism, Supports
from keras_attention.ops.patterns import blocks

PATTERN = Supports(cross=False, free_mask=False, bias=False, scores=False, relative=True, state=None)


def supports(**differences):
    """A declaration that differs from that of most patterns: one sequence, padding and the causal flag, no state."""
    return dataclasses.replace(PATTERN, **differences)


class Pattern(Mechanism):
    """A mechanism whose subclass gives `pattern` in place of `attend`, and so need not unpack masks and dropout."""

    def pattern(self, q, k, v, *, padding_mask, use_causal_mask, scale, dropout_rate, dropout_seed, **projected):
        """q, k, v [B, H, T, D], padding_mask boolean [B, T] or None -> [B, H, T, D].

        Where `supports.relative`, `distance_bias` may be among the options.
        """
        raise NotImplementedError

    def sees(self, heads, query, key):
        """Who sees whom under the causal flag, for patterns with a state.

        Args:
            heads: H.
            query: int32 [B, 1, T, 1], positions of the queries among the real tokens of their row.
            key: int32 [B, 1, 1, S], the same for the keys; none ahead of a query counts.

        Returns:
            Boolean, broadcastable to [B, H, T, S].
        """
        raise NotImplementedError

    def stored(self, q, k, v, *, padding_mask, query, key, scale, dropout_rate, dropout_seed, distance_bias=None):
        """New tokens q [B, H, T, D] and all keys so far: few rows, so that a table [T, S] is no larger than a store.

        A prompt in one piece is a table of its length squared: the price of reading it into a state.
        """
        query, key = query[:, None, :, None], key[:, None, None, :]
        allowed = padding_mask[:, None, None, :] & (key <= query) & self.sees(q.shape[1], query, key)
        bias = None if distance_bias is None else distance_bias(key - query)
        return blocks.attend(
            q, k, v, allowed, bias=bias, scale=scale, dropout_rate=dropout_rate, dropout_seed=dropout_seed
        )

    def attend(
        self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False, **projected
    ):
        rate, seed = dropout or (0.0, None)
        options = dict(padding_mask=mask.padding, scale=scale, dropout_rate=rate, dropout_seed=seed, **projected)
        if mask.query_positions is not None:
            query, key = mask.stored_positions()
            return self.stored(q, k, v, query=query, key=key, **options)
        out = self.pattern(q, k, v, use_causal_mask=mask.causal, **options)
        if mask.query_padding is None:
            return out
        return tf.where(mask.query_padding[:, None, :, None], out, tf.zeros([], out.dtype))
