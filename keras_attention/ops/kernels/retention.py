"""Retention: attention whose weights fade with distance, in three forms that give the same numbers.

Position here means the number of real tokens before one: padding neither adds to the memory nor lets it fade. The decay
comes as its logarithm, [H, 1] for one per head (the paper's) or [H, Dv] for one per channel of the values (the
documents').
"""

import math

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense import dot_product
from keras_attention.ops.kernels import chunks

CHUNK = 64
# Inside a chunk weights are products of a growing and a falling factor, each at most exp of this: both stay in float32.
LARGEST_EXPONENT = 60.0


def multi_scale_log_decay(num_heads):
    """The paper's decays 1 - 2^(-5 - h) of heads h = 0, 1, ...: NumPy float64 [num_heads, 1] of logarithms."""
    return np.log1p(-(2.0 ** (-5.0 - np.arange(num_heads)[:, None])))


def fastest_log_decay(chunk_size):
    """The lowest logarithm of a decay that `retention_chunkwise` can hold in float32 with this chunk size."""
    return -2 * LARGEST_EXPONENT / chunk_size


def largest_chunk(log_decay):
    """The largest chunk size with which `retention_chunkwise` can hold this logarithm of a decay in float32."""
    # The small excess keeps the pair of these two functions inverse in spite of rounding.
    return int(-2 * LARGEST_EXPONENT / log_decay * (1 + 1e-12))


def retention_parallel(q, k, v, log_decay, *, padding_mask=None, scale=None, normalize=False):
    """All pairs at once: out_t = sum over s <= t of decay^(t - s) (q_t . k_s) v_s. Time and memory O(T^2).

    Args:
        q, k: [B, H, T, D]; v: [B, H, T, Dv].
        log_decay: [H, 1] or [H, Dv], below 0.
        padding_mask: boolean [B, T], True = a real token.
        scale: factor on the scores; 1 / sqrt(D) by default.
        normalize: divide each row by the sum of its decays.

    Returns:
        [B, H, T, Dv] in q's dtype, computed in at least float32.

    Reference: Sun et al., 2023, "Retentive Network", https://arxiv.org/abs/2307.08621
    """
    result, q, k, v, log_decay = _prepared(q, k, v, log_decay, padding_mask, scale)
    length = checks.sizes(q)[-2]
    position = token_positions(length, padding_mask)  # [B|1, T], from 1
    since = tf.cast(position[:, :, None] - position[:, None, :], q.dtype)[:, None, :, :, None]  # [B|1, 1, T, T, 1]
    past = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)[:, :, None]
    decay = tf.where(past, tf.exp(tf.maximum(since, 0) * log_decay[:, None, None, :]), 0)  # [B|1, H, T, T, 1|Dv]
    weights = tf.matmul(q, k, transpose_b=True)[..., None] * decay
    if log_decay.shape[-1] == 1:
        out = tf.matmul(weights[..., 0], v)
    else:
        out = tf.reduce_sum(weights * v[:, :, None], axis=-2)
    return tf.cast(_normalized(out, position, log_decay) if normalize else out, result)


def retention_recurrent(q, k, v, log_decay, *, padding_mask=None, scale=None, normalize=False, state=None):
    """One token after another: memory = decay * memory + k_t v_t^T, out_t = q_t memory. Memory O(D * Dv).

    Args and result as for `retention_chunkwise`, which is the same in fewer, larger steps.

    Returns:
        `(out, state)`.
    """
    result, q, k, v, log_decay = _prepared(q, k, v, log_decay, padding_mask, scale)
    batch, heads, length, depth = checks.sizes(q)
    state = retention_state(batch, heads, depth, v.shape[-1], q.dtype) if state is None else state
    position = token_positions(length, padding_mask) + state["position"][:, None]  # [B, T]
    decay = tf.exp(log_decay)[:, None, :]  # [H, 1, 1|Dv]
    fades = tf.ones([1, length], tf.bool) if padding_mask is None else padding_mask

    def step(t, memory, rows):
        faded = tf.where(fades[:, t][:, None, None, None], memory * decay, memory)
        memory = faded + k[:, :, t, :, None] * v[:, :, t, None, :]
        return t + 1, memory, rows.write(t, tf.matmul(q[:, :, t, None, :], memory)[:, :, 0])

    rows = tf.TensorArray(q.dtype, size=length + 1, element_shape=[None, q.shape[1], v.shape[-1]])
    # One row more than there are tokens: an empty list could not be stacked.
    rows = rows.write(length, tf.zeros([batch, heads, v.shape[-1]], q.dtype))
    # The bound on the trip count lets XLA differentiate the loop.
    _, memory, rows = tf.while_loop(
        lambda t, *_: t < length, step, (0, tf.cast(state["s"], q.dtype), rows), maximum_iterations=length
    )
    out = tf.transpose(rows.stack()[:length], [1, 2, 0, 3])
    out = tf.ensure_shape(out, q.shape[:-1].concatenate(v.shape[-1:]))
    out = _normalized(out, position, log_decay) if normalize else out
    return tf.cast(out, result), {"s": memory, "position": _position_after(state, length, padding_mask)}


def retention_chunkwise(
    q, k, v, log_decay, *, padding_mask=None, scale=None, normalize=False, state=None, chunk_size=CHUNK
):
    """Chunks in parallel, the memory carried from chunk to chunk by one small matrix of decays, without a loop.

    Cost O(T * chunk_size * D + (T / chunk_size)^2 * D * Dv). The second part, quadratic in the number of chunks, is
    the smaller one up to T = 2 * chunk_size^3 / D (8192 for 64 and 64), and D / (2 * chunk_size^2) = 1/128 of dense
    attention's cost beyond. Memory O(T * (chunk_size + D * Dv / chunk_size)).

    Args:
        q, k, v, log_decay, padding_mask, scale, normalize: as for `retention_parallel`; log_decay not below
            `fastest_log_decay(chunk_size)`.
        state: None, or {"s": [B, H, D, Dv], "position": int32 [B]} of the tokens read before.
        chunk_size: tokens per chunk.

    Returns:
        `(out, state)`: [B, H, T, Dv] in q's dtype; the state after the last token, s in float32.
    """
    result, q, k, v, log_decay = _prepared(q, k, v, log_decay, padding_mask, scale)
    batch, heads, length, depth = checks.sizes(q)
    state = retention_state(batch, heads, depth, v.shape[-1], q.dtype) if state is None else state
    chunk = chunks.size_for(length, chunk_size)
    inside, bounds = _chunk_positions(length, padding_mask, chunk)  # [B|1, N, C], [B|1, N + 1]
    decay_by = log_decay[:, None, None, :]  # [H, 1, 1, 1|Dv]
    q, k, v = (chunks.split(x, chunk) for x in (q, k, v))  # [B, H, N, C, D]
    inside = tf.cast(inside, q.dtype)[:, None, :, :, None]  # [B|1, 1, N, C, 1], 1 for the first real token of a chunk
    bounds = tf.cast(bounds, q.dtype)[:, None, :]  # [B|1, 1, N + 1]

    scores = tf.linalg.band_part(tf.matmul(q, k, transpose_b=True), -1, 0)
    # decay^(t - s) as decay^(t - m) * decay^(m - s) about the middle m of the chunk.
    rise = tf.exp((chunk / 2 - inside) * decay_by)  # [B|1, H, N, C, 1|Dv]
    out = tf.matmul(scores, v * rise) * tf.exp((inside - chunk / 2) * decay_by)
    left = (bounds[..., 1:] - bounds[..., :-1])[..., None, None] - inside  # decay still to come inside the chunk
    added = tf.matmul(k, v * tf.exp(left * decay_by), transpose_a=True)  # [B, H, N, D, Dv]
    memory, final = _carried(added, bounds, log_decay, tf.cast(state["s"], q.dtype))
    out += tf.matmul(q, memory) * tf.exp(inside * decay_by)
    out = chunks.join(out, length)
    position = token_positions(length, padding_mask) + state["position"][:, None]
    out = _normalized(out, position, log_decay) if normalize else out
    return tf.cast(out, result), {"s": final, "position": _position_after(state, length, padding_mask)}


def retention_bidirectional(q, k, v, log_decay, *, padding_mask=None, scale=None, chunk_size=CHUNK):
    """Retention that fades with the distance on both sides: out_t = sum over all s of decay^|t - s| (q_t . k_s) v_s.

    Args, cost and result as for `retention_chunkwise`, twice; it has no state, and the paper does not have it.
    """
    result, dtype = q.dtype, dot_product.accumulation_dtype(q.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = (tf.cast(x, dtype) for x in (q, k, v))
    options = {"scale": scale, "chunk_size": chunk_size}
    past, _ = retention_chunkwise(q, k, v, log_decay, padding_mask=padding_mask, **options)
    turned = None if padding_mask is None else tf.reverse(padding_mask, axis=[1])
    future, _ = retention_chunkwise(
        *(tf.reverse(x, axis=[2]) for x in (q, k, v)), log_decay, padding_mask=turned, **options
    )
    own = tf.reduce_sum(q * k, axis=-1, keepdims=True) * tf.convert_to_tensor(scale, dtype) * v  # in both sums
    if padding_mask is not None:
        own = tf.where(padding_mask[:, None, :, None], own, 0)
    return tf.cast(past + tf.reverse(future, axis=[2]) - own, result)


def retention_state(batch_size, num_heads, depth, value_depth, dtype=tf.float32):
    """The memory before any token."""
    return {
        "s": tf.zeros([batch_size, num_heads, depth, value_depth], dtype),
        "position": tf.zeros([batch_size], tf.int32),
    }


def token_positions(length, padding_mask=None):
    """int32 [B or 1, T]: the number of real tokens up to and with each place."""
    if padding_mask is None:
        return tf.range(1, length + 1)[None]
    return tf.cumsum(tf.cast(padding_mask, tf.int32), axis=1)


def rotate(x, positions, base=10000.0):
    """Turns pairs of features by angles that grow with the position, so that products depend on the distance alone.

    Args:
        x: [B, H, T, D], D even; features 2i and 2i + 1 make a pair.
        positions: int32 [B or 1, T].
        base: the slowest pair turns by 1 / base per position, the fastest by 1.

    Returns:
        [B, H, T, D]. Angles are computed in at least float32.
    """
    depth = x.shape[-1]
    dtype = dot_product.accumulation_dtype(x.dtype)
    speeds = tf.constant(base ** -np.linspace(0, 1, depth // 2), dtype)
    angles = tf.cast(positions, dtype)[:, None, :, None] * speeds  # [B|1, 1, T, D/2]
    cos, sin = tf.cast(tf.cos(angles), x.dtype), tf.cast(tf.sin(angles), x.dtype)
    pairs = tf.reshape(x, [*checks.sizes(x)[:-1], depth // 2, 2])
    first, second = pairs[..., 0], pairs[..., 1]
    turned = tf.stack([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return tf.reshape(turned, checks.sizes(x))


def _prepared(q, k, v, log_decay, padding_mask, scale):
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    dot_product.check_qkv(q, k, v)
    result, dtype = q.dtype, dot_product.accumulation_dtype(q.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = tf.cast(q, dtype) * tf.convert_to_tensor(scale, dtype), tf.cast(k, dtype), tf.cast(v, dtype)
    if padding_mask is not None:
        keep = padding_mask[:, None, :, None]
        k, v = tf.where(keep, k, 0), tf.where(keep, v, 0)
    log_decay = tf.cast(log_decay, dtype) if tf.is_tensor(log_decay) else tf.constant(log_decay, dtype)
    return result, q, k, v, log_decay


def _chunk_positions(length, padding_mask, chunk):
    """Real tokens counted from each chunk's start, int32 [B or 1, N, C], and up to the bounds, [B or 1, N + 1]."""
    real = tf.ones([1, length], tf.int32) if padding_mask is None else tf.cast(padding_mask, tf.int32)
    real = chunks.split(real[..., None], chunk)[..., 0]
    ends = tf.cumsum(tf.reduce_sum(real, axis=-1), axis=-1)
    return tf.cumsum(real, axis=-1), tf.pad(ends, [[0, 0], [1, 0]])


def _position_after(state, length, padding_mask):
    """int32 [B]: the number of real tokens read, those of before included."""
    new = length if padding_mask is None else tf.reduce_sum(tf.cast(padding_mask, tf.int32), axis=1)
    return state["position"] + new


def _carried(added, bounds, log_decay, before):
    """The memory [B, H, N, D, Dv] that each chunk starts from, and the last one [B, H, D, Dv].

    bounds [B|1, 1, N + 1]: real tokens up to the start of each chunk and, last, up to the end.
    """
    batch, heads, number, depth, value_depth = checks.sizes(added)
    # What chunk j added has faded by decay^(start of n - end of j) when chunk n starts; row N is the end of the last.
    since = bounds[..., :, None] - bounds[..., None, 1:]  # [B|1, 1, N + 1, N]
    earlier = tf.range(number) < tf.range(number + 1)[:, None]
    channels = log_decay.shape[-1]
    exponent = tf.maximum(since, 0)[:, :, None] * log_decay[:, :, None, None]  # [B|1, H, 1|Dv, N + 1, N]
    fade = tf.where(earlier, tf.exp(exponent), 0)
    if channels == 1:
        flat = tf.matmul(fade[:, :, 0], tf.reshape(added, [batch, heads, number, depth * value_depth]))
        memory = tf.reshape(flat, [batch, heads, number + 1, depth, value_depth])
    else:
        memory = tf.transpose(tf.matmul(fade, tf.transpose(added, [0, 1, 4, 2, 3])), [0, 1, 3, 4, 2])
    memory += before[:, :, None] * tf.exp(bounds[..., None, None] * log_decay[:, None, None, :])
    return memory[:, :, :-1], memory[:, :, -1]


def _normalized(out, position, log_decay):
    """Divides rows by 1 + decay + ... + decay^(position - 1), of which there is a closed form for decays below 1."""
    count = tf.maximum(tf.cast(position, out.dtype), 1)[:, None, :, None]
    # A decay that was rounded to 1 must not make 0 / 0; far below any that float32 holds, so that no other one moves.
    log_decay = tf.minimum(log_decay, -1e-15)[:, None, :]  # [H, 1, 1|Dv]
    return out * _one_minus_exp(log_decay) / _one_minus_exp(count * log_decay)


def _one_minus_exp(x):
    """1 - exp(x) for x < 0 without cancellation near zero. As a tanh: ONNX has no expm1."""
    half = tf.tanh(x / 2)
    return -2 * half / (1 - half)
