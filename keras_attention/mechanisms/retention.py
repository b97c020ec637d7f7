"""Retention: attention without softmax whose weights fade with distance."""

import math

import numpy as np
import tensorflow as tf

from keras_attention.mechanisms.base import Supports, register
from keras_attention.mechanisms.recurrent import Recurrent
from keras_attention.ops.basics import checks
from keras_attention.ops.dense.dot_product import accumulation_dtype
from keras_attention.ops.kernels import retention


@register("retention")
class RetentionAttention(Recurrent):
    """RetNet's retention: sums of (q.k) v that fade by a decay per step, with O(D^2) of state and no normalizer.

    Choose it for long causal sequences and for decoding at a constant cost per token. Trained in chunks, decoded as a
    recurrence; the two give the same numbers. Without `use_causal_mask` it fades on both sides, which costs twice as
    much and is not in the paper.

    The defaults are the paper's form: one fixed decay per head (1 - 2^(-5-h)), rotary positions, a normalization of
    each head's output and a gate silu(x W) on it. The documents' form is
    `RetentionAttention(decay="learned", gate="memory", norm="layer", rotary=False)`: a learned decay for each channel
    of d_model, a gate sigmoid(x W) on what enters the memory, and LayerNorm over all heads.

    Args:
        decay: "multi_scale" (the paper's) or "learned" (per channel, from `min_decay` to 1, starting at the paper's).
        gate: "output" or "memory".
        norm: "group" (each head by itself) or "layer" (all heads together). Both have a scale and no offset, so that a
            row without any key stays zero.
        rotary: whether q and k are turned by their positions, counted along real tokens; needs an even head size.
        chunk_size: tokens per chunk: a matter of speed and memory alone. At most 120 / -log(d) for the fastest decay d
            there can be (3779 for the paper's, 64 for the default of `min_decay`): products inside a chunk would leave
            float32 beyond.
        epsilon: added to the variance in the normalization.
        min_decay: lower bound of learned decays, in (0, 31/32); None is exp(-120 / 64), about 0.153.

    Reference: Sun et al., "Retentive Network", 2023, https://arxiv.org/abs/2307.08621
    """

    supports = Supports(
        cross=False,
        free_mask=False,
        bias=False,
        scores=False,
        dropout=False,
        # It turns q and k itself: RetentionAttention(rotary=True).
        rotary=None,
        temperature=False,
        state="recurrent",
        time="T*chunk_size*D+(T/chunk_size)^2*D^2",
        memory="T*chunk_size",
        paper="Sun et al. 2023, https://arxiv.org/abs/2307.08621",
    )

    def __init__(
        self,
        decay="multi_scale",
        gate="output",
        norm="group",
        rotary=True,
        chunk_size=retention.CHUNK,
        epsilon=1e-6,
        min_decay=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.decay = checks.one_of("decay", decay, ("multi_scale", "learned"))
        self.gate = checks.one_of("gate", gate, ("output", "memory"))
        self.norm = checks.one_of("norm", norm, ("group", "layer"))
        self.rotary = bool(rotary)
        self.chunk_size = checks.positive_int("chunk_size", chunk_size)
        self.epsilon = checks.positive_number("epsilon", epsilon)
        self.min_decay = min_decay
        self._fastest_log_decay = _fastest_log_decay(decay, min_decay)
        largest = retention.largest_chunk(self._fastest_log_decay)
        if self.chunk_size > largest:
            fastest = math.exp(self._fastest_log_decay)
            way_out = " or a larger min_decay" if decay == "learned" else ""
            raise ValueError(
                f"chunk_size must be at most {largest}, or decays as fast as {fastest:.3f} leave float32 in a chunk. "
                f"Got chunk_size={chunk_size}; use a smaller one{way_out}."
            )

    def build_projections(self, owner, q_width, k_width, v_width):
        super().build_projections(owner, q_width, k_width, v_width)
        owner.add_projection("gate", q_width, owner.num_heads if self.gate == "output" else owner.num_kv_heads)

    def build_heads(self, owner):
        if self.rotary and owner.head_dim % 2:
            raise ValueError(
                f"Rotary positions turn pairs of features: head_dim must be even. Got head_dim={owner.head_dim}; "
                "use an even one or RetentionAttention(rotary=False)."
            )
        width = (owner.num_heads, owner.head_dim)
        self.norm_scale = self.add_weight(name="norm_scale", shape=width, initializer="ones", autocast=False)
        self.start = retention.multi_scale_log_decay(owner.num_heads)  # [H, 1]
        if self.decay == "learned":
            share = self.start / self._fastest_log_decay
            logits = np.broadcast_to(np.log(share) - np.log1p(-share), width)
            self.decay_logits = self.add_weight(
                name="decay_logits", shape=width, initializer=lambda shape, dtype=None: logits, autocast=False
            )

    def project(self, owner, q, k, v, training=False):
        q_heads, k_heads, v_heads = owner.project_heads(q, k, v, training)
        if self.gate == "memory":
            v_heads *= tf.sigmoid(owner.split_heads(owner.gate_projection(v), owner.num_kv_heads))
        return q_heads, k_heads, v_heads, {}

    def log_decay(self, dtype=tf.float32):
        """[H, 1], or [H, D] where it is learned: logarithms of the decays."""
        if self.decay == "multi_scale":
            return tf.constant(self.start, dtype)
        logits = tf.cast(self.decay_logits, dtype)
        return self._fastest_log_decay * tf.sigmoid(logits)

    def read(self, q, k, v, *, padding_mask, causal, scale, state):
        # In float32 to the end: sums over long sequences leave float16's range before they are normalized.
        dtype = accumulation_dtype(q.dtype)
        q, k, v = (tf.cast(x, dtype) for x in (q, k, v))
        if self.rotary:
            positions = retention.token_positions(checks.sizes(q)[2], padding_mask)
            if state is not None:
                positions += state["position"][:, None]
            q, k = retention.rotate(q, positions), retention.rotate(k, positions)
        options = {"padding_mask": padding_mask, "scale": scale, "chunk_size": self.chunk_size}
        if causal:
            return retention.retention_chunkwise(q, k, v, self.log_decay(dtype), state=state, **options)
        return retention.retention_bidirectional(q, k, v, self.log_decay(dtype), **options), None

    def finish(self, owner, attended, q):
        heads, depth = self.norm_scale.shape
        batch, length, width = checks.sizes(attended)
        shape = [batch, length, heads, depth] if self.norm == "group" else [batch, length, 1, width]
        out = tf.reshape(attended, shape)
        mean, variance = tf.nn.moments(out, axes=[-1], keepdims=True)
        out = tf.reshape((out - mean) * tf.math.rsqrt(variance + self.epsilon), [batch, length, width])
        out = tf.cast(out * tf.reshape(tf.cast(self.norm_scale, out.dtype), [width]), q.dtype)
        return out * tf.nn.silu(owner.gate_projection(q)) if self.gate == "output" else out

    def empty_state(self, batch_size, num_heads, head_dim, dtype):
        return retention.retention_state(batch_size, num_heads, head_dim, head_dim, dtype)


def _fastest_log_decay(decay, min_decay):
    """The logarithm of the fastest decay that the options allow."""
    paper = float(retention.multi_scale_log_decay(1)[0, 0])
    if decay == "multi_scale":
        if min_decay is not None:
            raise ValueError(
                f"min_decay bounds learned decays, and decay='multi_scale' has fixed ones. Got min_decay={min_decay}; "
                "leave it out or use decay='learned'."
            )
        return paper
    if min_decay is None:
        return retention.fastest_log_decay(retention.CHUNK)
    if not 0 < min_decay < math.exp(paper):
        raise ValueError(
            f"min_decay must lie between 0 and {math.exp(paper):.5f}, where learned decays start. Got {min_decay!r}."
        )
    return math.log(min_decay)
