"""The side of the attention layer that decodes: states that tokens are read into, and memories that they attend to."""

import tensorflow as tf

from keras_attention.layers.attention import attention_positions, call_arguments, implicit_masks
from keras_attention.ops.basics import checks, masks


class Decoding:
    """Mixin of `MultiHeadAttention`."""

    def init_state(self, batch_size, max_length=None):
        """An empty decoding state of `batch_size` rows, for `call(state=)`.

        Args:
            batch_size: an int or a scalar tensor.
            max_length: None for a state that grows by concatenation; an int for one of that fixed size, with a length
                per row, as XLA, tf.while_loop and TensorFlow Serving need. Past its end eager calls raise ValueError
                and graphs put NaN into that row.

        Returns:
            A dict of plain tensors, batch first.
        """
        if self.mechanism.supports.state is None:
            self.mechanism.refuse("a decoding state", "mechanism='softmax'")
        if max_length is not None:
            max_length = checks.positive_int("max_length", max_length)
        state = self.mechanism.init_state(self, batch_size, tf.as_dtype(self.compute_dtype), max_length)
        return attention_positions.with_count(self, state, batch_size)

    def reorder_state(self, state, parents):
        """The rows `parents` (int32 [B']) of a state: what beam search needs after each step."""
        return self.mechanism.reorder(state, parents)

    def project_memory(self, v, k=None, padding_mask=None):
        """Keys and values of a sequence that will be attended to many times (an encoder's output).

        Args:
            v: [B, S, E]; k: the same by default. Their implicit masks are honoured.
            padding_mask: boolean [B, S], True = a real key.

        Returns:
            {"key": [B, Hkv, S, D], "value": [B, Hkv, S, D], "valid": int32 [B, S]} for `call(memory=)`.
        """
        if not self.built:
            raise ValueError(f"Layer {self.name!r} has no weights yet: call or build it before project_memory.")
        if not self.mechanism.supports.cross:
            self.mechanism.refuse("keys of another sequence (project_memory)", "mechanism='softmax'")
        k = v if k is None else k
        # Read before the cast, which makes tensors without them.
        v_mask, k_mask = implicit_masks.get(v), implicit_masks.get(k)
        k, v = self._cast(k), self._cast(v)
        batch, length, _ = checks.sizes(k)
        given = {"padding_mask": padding_mask, "k_mask": k_mask, "v_mask": v_mask}
        padding = call_arguments.key_padding(given, batch, length)
        valid = tf.ones([batch, length], tf.int32) if padding is None else tf.cast(padding, tf.int32)
        return {
            "key": self.split_heads(self.key_projection(k), self.num_kv_heads),
            "value": self.split_heads(self.value_projection(v), self.num_kv_heads),
            "valid": valid,
        }

    def _read(self, heads, limits, options, state):
        """New tokens on their way into a state: what `_attend` gives for them, and the new state."""
        own, count = attention_positions.split_count(self, state)
        attended, own = self.mechanism.attend_state(
            heads.q,
            heads.k,
            heads.v,
            state=own,
            valid=limits.padding,
            mask=masks.AttentionMask(free=limits.free),
            expand=self._expand,
            **heads.projected,
            **options,
        )
        return attended, attention_positions.counted(own, count, limits.padding, checks.sizes(heads.q)[2])
