"""Exact softmax attention whose memory grows with T + S instead of T x S."""

import math

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense import blockwise_loops, blockwise_plan
from keras_attention.ops.dense.dot_product import check_qkv


def blockwise_attention(
    q,
    k,
    v,
    mask=None,
    *,
    bias=None,
    use_causal_mask=False,
    padding_mask=None,
    query_offset=None,
    query_positions=None,
    scale=None,
    temperature=1.0,
    dropout_rate=0.0,
    dropout_seed=None,
    training=False,
    block_size=None,
    query_block_size=None,
    key_block_size=None,
    xla=None,
):
    """The same function as `scaled_dot_product_attention`, computed by tiles of queries and keys.

    The result is exact softmax attention; nothing of size T x S is kept, neither forward (running maximum and sum) nor
    for the gradient (tiles are computed again from the saved logarithm of the sum). Choose it for long sequences; below
    a few hundred positions the dense form costs the same. Time O(T S D), about half of that for causal attention, where
    tiles above the diagonal are skipped; memory O((T + S) D) beyond what is given as `mask` and `bias`.

    Args:
        q: floating [B, H, T, D].
        k: [B, K, S, D]; K divides H, and each of the K heads serves H / K heads of q in a row.
        v: [B, K, S, Dv].
        mask: broadcastable to [B, H, T, S]; rank 2 is (T, S), rank 3 is (B, T, S). Boolean: True = may attend.
            Floating: the documents' sense, 1 = blocked.
        bias: floating [B|1, H|1, T|1, S|1] or [T, S], added to the scaled scores; -inf blocks. It has a gradient.
        use_causal_mask: key s is open to query t where s <= t + query_offset.
        padding_mask: boolean [B, S], True = a real key. What stands at other keys, NaN included, has no influence.
        query_offset: position of the first query on the key axis: int or int32 scalar, or [B] where rows differ. S - T
            by default: the last query sees the last key. Only with `use_causal_mask`.
        query_positions: int32 [B, T] (or [1, T]) in place of `query_offset`: the position of each query.
        scale: factor on the scores in place of 1 / sqrt(D).
        temperature: the scores are divided by it.
        dropout_rate: share of weights set to zero (the others grow by 1 / (1 - rate)); 0 at inference.
        dropout_seed: int [2], seed of the dropout mask, which is a function of this seed, the head and the position:
            the same on every device, for every block size, compiled or not, and in the dense form.
        training: whether this is part of a training step, for the default of `xla`.
        block_size, query_block_size, key_block_size: sides of the tiles; chosen from the shapes where None.
        xla: True compiles forward and backward with XLA (in their own function, inside whatever calls this), False
            leaves plain TensorFlow loops; both are exact. None compiles while `training` only, so that exported models
            hold no compiled function. Lengths are padded to a bounded number of compiled sizes where they are not
            static.

    Returns:
        [B, H, T, Dv] in q's dtype; scores and sums are kept in float32 (float64 for float64). Rows that may attend to
        nothing are zero and have zero gradients.

    Raises:
        ValueError: for shapes that do not fit, a rate without a seed, an offset without causality, bad block sizes.
        TypeError: for dtypes that differ and integer masks.

    Reference: Dao et al., "FlashAttention", 2022, https://arxiv.org/abs/2205.14135; Rabe and Staats, "Self-attention
        Does Not Need O(n^2) Memory", 2021, https://arxiv.org/abs/2112.05682. Unlike FlashAttention's GPU kernel this is
        two nested loops of matrix products that XLA fuses, on any device.
    """
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    _check(q, k, v)
    batch, heads, query_length, depth = checks.sizes(q)
    kv_heads, key_length, width = k.shape[1], checks.sizes(k)[2], v.shape[-1]
    groups = heads // kv_heads
    rate = checks.rate("dropout_rate", dropout_rate)
    if rate and dropout_seed is None:
        raise ValueError(f"dropout_rate={rate} needs dropout_seed, an int32 tensor of shape [2].")
    compiled = bool(training) if xla is None else bool(xla)

    blocks = [
        _block(name, size, block_size)
        for name, size in (("query_block_size", query_block_size), ("key_block_size", key_block_size))
    ]
    # A tile of queries holds the rows of all heads that share their keys.
    longest = blockwise_plan.longest_block(batch, heads, compiled)
    by_query = blockwise_plan.plan(query_length, blocks[0], max(16, longest // groups), compiled)
    by_key = blockwise_plan.plan(key_length, blocks[1], longest, compiled)

    positions = padding = None
    if use_causal_mask:
        positions = _positions(query_offset, query_positions, query_length, key_length)
        positions = blockwise_plan.padded(positions, {1: by_query}, fill=-1)
    elif query_offset is not None or query_positions is not None:
        raise ValueError("query_offset and query_positions place the causal mask: they need use_causal_mask=True.")
    if padding_mask is not None:
        padding = blockwise_plan.padded(
            masks.key_mask(padding_mask, "padding_mask", batch, key_length), {1: by_key}, False
        )
    tiling = blockwise_loops.Tiling(by_query.block, by_key.block, False, rate)
    where = ((batch, heads, query_length, key_length), kv_heads, by_query, by_key)
    if mask is not None:
        mask = masks.as_boolean(mask)
        mask = masks.free_mask(mask[None] if mask.shape.rank == 2 else mask, batch, query_length, key_length)
        mask, axes = blockwise_plan.by_group(mask, "mask", *where)
        tiling = tiling._replace(mask_axes=axes)
    if bias is not None:
        bias, axes = blockwise_plan.by_group(_rank_4(bias), "bias", *where)
        tiling = tiling._replace(bias_axes=axes)

    # The keys that pad the last block lie past every position of ordinary causal attention.
    ragged = not by_key.exact and (positions is None or query_offset is not None or query_positions is not None)
    tiling = tiling._replace(ragged=ragged)
    seed = tf.convert_to_tensor(dropout_seed) if rate else None
    limits = blockwise_loops.Limits(by_query.length, by_key.length, positions, padding, mask, None, seed)
    scale = (1 / math.sqrt(depth) if scale is None else scale) / checks.positive_number("temperature", temperature)
    q = tf.reshape(blockwise_plan.padded(q, {2: by_query}), [batch, kv_heads, groups, by_query.room, depth])
    k, v = (blockwise_plan.padded(x, {2: by_key}) for x in (k, v))
    out = tf.reshape(_attend(q, k, v, bias, limits, tiling, scale, compiled), [batch, heads, by_query.room, width])
    return out if by_query.exact else out[:, :, :query_length]


def _attend(q, k, v, bias, limits, tiling, scale, compiled):
    """`tiles.forward` with `tiles.backward` as its gradient."""
    if compiled:
        run_forward, run_backward = _compiled_forward, _compiled_backward
    elif tf.executing_eagerly():
        run_forward, run_backward = _graph_forward, _graph_backward
    else:  # the loops become part of the caller's graph
        run_forward, run_backward = blockwise_loops.forward, blockwise_loops.backward

    def with_bias(bias):
        return limits._replace(bias=bias[0] if bias else None)

    @tf.custom_gradient
    def attend(*inputs):
        # No tape may follow the loops themselves: it would store every tile.
        q, k, v, *bias = hidden = [tf.stop_gradient(x) for x in inputs]
        out, log_sum = run_forward(q, k, v, with_bias(bias), tiling, scale)

        @tf.custom_gradient
        def first_derivatives(*inputs_and_upstream):
            upstream = tf.stop_gradient(inputs_and_upstream[-1])
            first = run_backward(q, k, v, out, log_sum, upstream, with_bias(bias), tiling, scale)

            def second_derivatives(*upstream):
                return _second_derivatives(inputs_and_upstream, upstream)

            return first[: len(hidden)], second_derivatives

        return out, lambda upstream: first_derivatives(*inputs, upstream)

    def _second_derivatives(inputs_and_upstream, upstream):
        # Rarely wanted (gradient penalties): through the dense form, O(T S) memory.
        with tf.GradientTape() as outer:
            outer.watch(inputs_and_upstream)
            *inputs, first_upstream = inputs_and_upstream
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                q, k, v, *bias = inputs
                out = blockwise_loops.dense(q, k, v, with_bias(bias), tiling, scale)
            first = inner.gradient(out, inputs, first_upstream)
        return outer.gradient(first, inputs_and_upstream, upstream)

    return attend(q, k, v) if bias is None else attend(q, k, v, bias)


_compiled_forward = tf.function(blockwise_loops.forward, jit_compile=True, autograph=False)
_compiled_backward = tf.function(blockwise_loops.backward, jit_compile=True, autograph=False)
_graph_forward = tf.function(blockwise_loops.forward, autograph=False, reduce_retracing=True)
_graph_backward = tf.function(blockwise_loops.backward, autograph=False, reduce_retracing=True)


def _check(q, k, v):
    """Raises where the shapes do not fit."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.shape.rank == k.shape.rank == v.shape.rank == 4:
        raise ValueError(f"q, k and v must have rank 4: [B, H, T, D], [B, K, S, D], [B, K, S, Dv]. Got {shapes}.")
    check_qkv(q, k, v)
    if q.shape[1] is None or k.shape[1] is None or v.shape[-1] is None:
        raise ValueError(f"The number of heads and the last axis must be known when tracing. Got {shapes}.")
    if not k.shape[:2].is_compatible_with(v.shape[:2]) or not q.shape[:1].is_compatible_with(k.shape[:1]):
        raise ValueError(f"q, k and v must have one batch size, k and v as many heads. Got {shapes}.")
    checks.divisible("The number of q's heads", q.shape[1], "the number of k's heads", k.shape[1])


def _block(name, size, both):
    """The size of a block that the caller wants, or None."""
    if size is not None:
        return checks.positive_int(name, size)
    return None if both is None else checks.positive_int("block_size", both)


def _positions(offset, positions, query_length, key_length):
    """int32 [B|1, T]: each row may attend to the keys up to its position."""
    if positions is not None:
        if offset is not None:
            raise ValueError("Give query_offset or query_positions, not both.")
        positions = tf.cast(positions, tf.int32)
        if positions.shape.rank != 2:
            raise ValueError(f"query_positions must have shape [B, T] or [1, T]. Got {tuple(positions.shape)}.")
        return positions
    offset = tf.cast(key_length - query_length if offset is None else offset, tf.int32)
    if offset.shape.rank not in (0, 1):
        raise ValueError(f"query_offset must be a scalar or have shape [B]. Got {tuple(offset.shape)}.")
    return tf.reshape(offset, [-1, 1]) + tf.range(query_length)


def _rank_4(bias):
    bias = tf.convert_to_tensor(bias)
    if not bias.dtype.is_floating:
        raise TypeError(f"bias must be floating: it is added to the scores. Got dtype {bias.dtype.name}.")
    if bias.shape.rank == 2:
        return bias[None, None]
    if bias.shape.rank != 4:
        raise ValueError(
            f"bias must have rank 4 [B|1, H|1, T|1, S|1] or rank 2 [T, S]. Got shape {tuple(bias.shape)}; write "
            "bias[None] for (H, T, S), bias[:, None] for (B, T, S)."
        )
    return bias
