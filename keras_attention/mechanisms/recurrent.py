"""What the mechanisms that fold all they have read into a state of fixed size have in common."""

import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism
from keras_attention.ops.dense.dot_product import accumulation_dtype


class Recurrent(Mechanism):
    """A mechanism whose subclass gives `read` in place of `attend`, and `empty_state`.

    Its state does not grow and has no end: `init_state(max_length=)` sets no limit. Padding leaves it untouched.
    """

    def read(self, q, k, v, *, padding_mask, causal, scale, state, **options):
        """Attends.

        Args:
            q, k, v: heads [B, H, T or S, D].
            padding_mask: boolean [B, S] or None.
            causal: whether only the past counts.
            scale: factor on the scores.
            state: a state to go on from, causal only; or None.
            **options: `rotate` where `supports.rotary` is "features" and positions were asked for.

        Returns:
            `(attended, state)`: [B, H, T, D]; the state after the last key, or None where not causal.
        """
        raise NotImplementedError

    def empty_state(self, batch_size, num_heads, head_dim, dtype):
        """The state before any token: a dict of tensors, batch first, whose sums are of `dtype`."""
        raise NotImplementedError

    def attend(self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False, **options):
        out, _ = self.read(q, k, v, padding_mask=mask.padding, causal=mask.causal, scale=scale, state=None, **options)
        if mask.query_padding is None:
            return out
        return tf.where(mask.query_padding[:, None, :, None], out, tf.zeros([], out.dtype))

    def init_state(self, owner, batch_size, dtype, max_length=None):
        # Sums over a long text are kept as they are taken: in float32 at least.
        return self.empty_state(batch_size, owner.num_heads, owner.head_dim, accumulation_dtype(dtype))

    def attend_state(
        self,
        q,
        k,
        v,
        *,
        state,
        valid,
        mask,
        expand,
        scale,
        dropout=None,
        return_scores=False,
        training=False,
        **options,
    ):
        k, v = expand(k), expand(v)
        return self.read(q, k, v, padding_mask=valid, causal=True, scale=scale, state=state, **options)

    def capacity(self, state):
        return None
