"""Exact softmax attention by tiles: the loops behind `blockwise_attention`, forward and backward.

A tile is `query_block` rows of queries against `key_block` keys. The forward pass keeps a running maximum and a running
sum for each row (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867; Rabe and Staats 2021,
https://arxiv.org/abs/2112.05682) and saves the logarithm of the sum; the backward pass recomputes each tile's weights
from it (Dao et al. 2022, https://arxiv.org/abs/2205.14135). Nothing of size T x S ever exists.

Shapes here: q [B,K,G,T,D], k [B,K,S,D], v [B,K,S,Dv]; K key/value heads, each shared by G query heads. T and S are
multiples of the blocks; `Limits` says how much of them is real.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense import blockwise_plan, dropout_bits
from keras_attention.ops.dense.dot_product import accumulation_dtype, masked_softmax


class Tiling(NamedTuple):
    """What is known when the loops are traced; plain numbers, so that tf.function compares them by value."""

    query_block: int
    key_block: int
    ragged: bool  # the last keys may be padding up to a multiple of the block
    dropout_rate: float
    # Whether the mask (the bias) has an axis of queries and one of keys, or is the same along it. Not read from the
    # shapes, which tf.function may forget.
    mask_axes: tuple[bool, bool] = (True, True)
    bias_axes: tuple[bool, bool] = (True, True)


class Limits(NamedTuple):
    """The tensors beside q, k and v; None where not given."""

    query_length: Any  # int32 scalar, how many rows of q are real
    key_length: Any  # int32 scalar, how many keys are
    positions: Any = None  # int32 [B|1, T]: a row may attend to the keys up to its position; None without causality
    padding: Any = None  # bool [B|1, S], True = a real key
    mask: Any = None  # bool [B|1, K|1, G|1, T|1, S|1], True = may attend
    bias: Any = None  # floating [B|1, K|1, G|1, T|1, S|1], added to the scores; -inf blocks
    seed: Any = None  # int [2], of the dropout


def forward(q, k, v, limits, tiling, scale):
    """Attention and, for each row, the logarithm of its softmax's denominator.

    Returns:
        out [B,K,G,T,Dv] in v's dtype; log_sum [B,K,G,T] in the accumulation dtype, +inf for rows without any key.
    """
    tiles = _Tiles(q, k, v, limits, tiling, scale)
    # Below every score, yet finite: a row that has met no key has the maximum -inf, and -inf - -inf would be NaN. With
    # this as the least that is subtracted its weights are exp(-inf) = 0.
    floor = tf.constant(-0.5 * tiles.dtype.max, tiles.dtype)
    row_shape = [tiles.batch, tiles.heads, tiles.rows, 1]
    tile_shape = [tiles.batch, tiles.heads, tiles.groups, tiling.query_block]
    out_list = tf.TensorArray(v.dtype, tiles.query_tiles, element_shape=_static([*tile_shape, tiles.width]))
    sum_list = tf.TensorArray(tiles.dtype, tiles.query_tiles, element_shape=_static(tile_shape))

    def query_step(i, out_list, sum_list):
        q_tile = tiles.scaled_queries(i)

        def key_step(j, top, total, acc):
            scores = tiles.scores(q_tile, tiles.keys(k, j), i, j)
            new_top = tf.maximum(top, tf.reduce_max(scores, axis=-1, keepdims=True))
            weights = tf.exp(scores - new_top)
            decay = tf.exp(top - new_top)
            total = total * decay + tf.reduce_sum(weights, axis=-1, keepdims=True)
            acc = acc * decay + tf.matmul(tiles.dropped(weights, i, j), tiles.keys(v, j))
            return j + 1, new_top, total, acc

        start = (
            tf.fill(row_shape, floor),
            tf.zeros(row_shape, tiles.dtype),
            tf.zeros([*row_shape[:-1], tiles.width], tiles.dtype),
        )
        _, top, total, acc = _loop(0, tiles.key_tiles_of(i), tiles.key_tiles, key_step, start)
        # The largest score alone adds 1 to the sum: it is 0 only where there is no key, and the result is 0 there.
        log_sum = tf.where(total > 0, top + tf.math.log(total), tf.constant(float("inf"), tiles.dtype))
        total = tf.maximum(total, 1)
        out_list = out_list.write(i, tf.cast(tf.reshape(acc / total, [*tile_shape, tiles.width]), v.dtype))
        return i + 1, out_list, sum_list.write(i, tf.reshape(log_sum, tile_shape))

    _, out_list, sum_list = _loop(0, tiles.real_query_tiles, tiles.query_tiles, query_step, (out_list, sum_list))
    return _joined(out_list.stack(), 3), _joined(sum_list.stack(), 3)


def backward(q, k, v, out, log_sum, upstream, limits, tiling, scale):
    """Gradients of `forward`'s first result, from both its results and the gradient that arrives.

    Returns:
        (dq, dk, dv, dbias) in the dtypes and shapes of q, k, v and the bias; dbias is None without one.
    """
    # Tiles stand on their side here, keys before queries: so all five products but one take their left matrix as it
    # lies in memory (the other is k's tile, turned once a loop), which on a CPU is twice as fast as a turned one.
    tiles = _Tiles(q, k, v, limits, tiling, scale)
    # What all keys of a row share in the softmax's gradient. It holds under dropout too, since out contains it.
    shared = tf.reduce_sum(tf.cast(upstream, tiles.dtype) * tf.cast(out, tiles.dtype), axis=-1, keepdims=True)
    log_sum = log_sum[..., None]
    key_shape = [tiles.batch, tiles.heads, tiling.key_block]
    dq_shape = [tiles.batch, tiles.heads, tiles.depth, tiles.rows]
    dq_list = _zeros_list(tiles.query_tiles, dq_shape, tiles.dtype)
    dk_list = tf.TensorArray(k.dtype, tiles.key_tiles, element_shape=_static([*key_shape, tiles.depth]))
    dv_list = tf.TensorArray(v.dtype, tiles.key_tiles, element_shape=_static([*key_shape, tiles.width]))
    dbias = _BiasGradient(tiles)

    def key_step(j, dq_list, dk_list, dv_list, dbias_list):
        k_tile, v_tile = tiles.keys(k, j), tiles.keys(v, j)
        turned_k = tf.linalg.matrix_transpose(k_tile)

        def query_step(i, dk, dv, dq_list, dbias_list):
            q_tile = tiles.scaled_queries(i)
            upstream_tile = tf.cast(tiles.queries(upstream, i), tiles.dtype)
            weights = tf.exp(tiles.turned_scores(k_tile, q_tile, i, j) - tiles.per_row(log_sum, i))
            dv += tf.matmul(tiles.dropped(weights, i, j, turned=True), upstream_tile)
            dweights = tf.matmul(v_tile, upstream_tile, transpose_b=True)
            dscores = weights * (tiles.dropped(dweights, i, j, turned=True) - tiles.per_row(shared, i))
            dk += tf.matmul(dscores, q_tile)
            dq_list = dq_list.write(i, dq_list.read(i) + tf.matmul(turned_k, dscores))
            return i + 1, dk, dv, dq_list, dbias.added(dbias_list, dscores, i, j)

        start = (
            tf.zeros([*key_shape, tiles.depth], tiles.dtype),
            tf.zeros([*key_shape, tiles.width], tiles.dtype),
            dq_list,
            dbias_list,
        )
        first = tiles.first_query_tile_of(j)
        _, dk, dv, dq_list, dbias_list = _loop(first, tiles.real_query_tiles, tiles.query_tiles, query_step, start)
        dk_list = dk_list.write(j, tf.cast(dk, k.dtype))
        return j + 1, dq_list, dk_list, dv_list.write(j, tf.cast(dv, v.dtype)), dbias_list

    start = (dq_list, dk_list, dv_list, dbias.start())
    _, dq_list, dk_list, dv_list, dbias_list = _loop(0, tiles.real_key_tiles, tiles.key_tiles, key_step, start)
    dq = tf.cast(dq_list.stack() * tiles.scale, q.dtype)
    dq = tf.reshape(dq, [tiles.query_tiles, *dq_shape[:3], tiles.groups, tiling.query_block])
    dq = tf.transpose(dq, [0, 1, 2, 4, 5, 3])
    return _joined(dq, 3), _joined(dk_list.stack(), 2), _joined(dv_list.stack(), 2), dbias.finish(dbias_list)


def dense(q, k, v, limits, tiling, scale):
    """`forward`'s first result from one tile of everything, in operations that TensorFlow can differentiate."""
    query_room, key_room = checks.sizes(q)[3], checks.sizes(k)[2]
    tiles = _Tiles(q, k, v, limits, tiling._replace(query_block=query_room, key_block=key_room), scale)
    scores = tiles.scores(tiles.scaled_queries(0), tiles.keys(k, 0), 0, 0)
    weights = masked_softmax(scores, scores > -float("inf"))
    out = tf.matmul(tiles.dropped(weights, 0, 0), tiles.keys(v, 0))
    return tf.cast(tf.reshape(out, [*checks.sizes(q)[:4], tiles.width]), v.dtype)


class _Tiles:
    """What forward and backward share: cutting tiles out, their scores, their dropout, and which tiles to visit."""

    def __init__(self, q, k, v, limits, tiling, scale):
        self.q, self.limits, self.tiling = q, limits, tiling
        self.dtype = accumulation_dtype(q.dtype)
        # tf.cast would round a Python number to float32 on its way to float64.
        self.scale = tf.cast(scale, self.dtype) if tf.is_tensor(scale) else tf.constant(scale, self.dtype)
        self.batch, self.heads, self.groups, query_room, self.depth = checks.sizes(q)
        self.width = checks.sizes(v)[-1]
        self.rows = self.groups * tiling.query_block
        self.query_tiles = query_room // tiling.query_block  # that there is room for; the loops may stop earlier
        self.key_tiles = checks.sizes(k)[2] // tiling.key_block
        # At least one, of padding, where a length is 0: an empty list of tiles of unknown shape cannot be joined.
        self.real_query_tiles = tf.maximum(blockwise_plan.blocks_in(limits.query_length, tiling.query_block), 1)
        self.real_key_tiles = tf.maximum(blockwise_plan.blocks_in(limits.key_length, tiling.key_block), 1)
        if limits.positions is not None:
            by_tile = tf.reshape(limits.positions, [-1, self.query_tiles, tiling.query_block])
            self.reach = tf.reduce_max(by_tile, axis=[0, 2])  # the last key that any row of a tile may see

    def queries(self, x, i):
        """Rows of tile i of x [B,K,G,T,N] as [B,K,G*query_block,N]."""
        tile = _cut(x, 3, i, self.tiling.query_block)
        return tf.reshape(tile, [self.batch, self.heads, self.rows, checks.sizes(x)[-1]])

    def per_row(self, x, i):
        """Rows of tile i of x [B,K,G,T,1], one number a row, beside turned scores: [B,K,1,G*query_block]."""
        tile = _cut(x, 3, i, self.tiling.query_block)
        return tf.reshape(tile, [self.batch, self.heads, 1, self.rows])

    def scaled_queries(self, i):
        """Tile i of q, with the scale: once for the tile instead of once for every score."""
        return tf.cast(self.queries(self.q, i), self.dtype) * self.scale

    def keys(self, x, j):
        """Tile j of k or v, with zeros for padding: a NaN there would survive a weight of zero."""
        tile = tf.cast(_cut(x, 2, j, self.tiling.key_block), self.dtype)
        if self.limits.padding is None:
            return tile
        real = _cut(self.limits.padding, 1, j, self.tiling.key_block)
        return tf.where(real[:, None, :, None], tile, tf.zeros([], self.dtype))

    def scores(self, q_tile, k_tile, i, j):
        """Scores [B,K,G*query_block,key_block] with -inf where a row may not attend."""
        by_group = [self.groups, self.tiling.query_block, self.tiling.key_block]
        return self._limited(tf.matmul(q_tile, k_tile, transpose_b=True), by_group, [0, 1, 2, 3, 4], i, j)

    def turned_scores(self, k_tile, q_tile, i, j):
        """`scores`, with the keys before the queries: [B,K,key_block,G*query_block]."""
        by_group = [self.tiling.key_block, self.groups, self.tiling.query_block]
        return self._limited(tf.matmul(k_tile, q_tile, transpose_b=True), by_group, [0, 1, 4, 2, 3], i, j)

    def _limited(self, scores, by_group, order, i, j):
        """Adds the bias and applies the mask; `order` turns [B,K,G,query_block,key_block] to the scores' axes."""
        allowed, bias = self.allowed(i, j), self.limits.bias
        if allowed is None and bias is None:
            return scores
        together = [self.batch, self.heads, *checks.sizes(scores)[2:]]
        scores = tf.reshape(scores, [self.batch, self.heads, *by_group])
        if bias is not None:
            scores += tf.transpose(tf.cast(self.pair(bias, self.tiling.bias_axes, i, j), self.dtype), order)
        if allowed is not None:
            scores = tf.where(tf.transpose(allowed, order), scores, tf.constant(-float("inf"), self.dtype))
        return tf.reshape(scores, together)

    def allowed(self, i, j):
        """Boolean broadcastable to [B,K,G,query_block,key_block], or None where everything is."""
        limits, parts = self.limits, []
        columns = j * self.tiling.key_block + tf.range(self.tiling.key_block)
        if limits.positions is not None:
            positions = _cut(limits.positions, 1, i, self.tiling.query_block)
            parts.append((columns <= positions[:, :, None])[:, None, None])
        if self.tiling.ragged:
            parts.append((columns < limits.key_length)[None, None, None, None])
        if limits.padding is not None:
            parts.append(_cut(limits.padding, 1, j, self.tiling.key_block)[:, None, None, None])
        if limits.mask is not None:
            parts.append(self.pair(limits.mask, self.tiling.mask_axes, i, j))
        return masks.joined(*parts)

    def pair(self, x, axes, i, j):
        """Tile (i, j) of a mask or a bias."""
        x = _cut(x, 3, i, self.tiling.query_block) if axes[0] else x
        return _cut(x, 4, j, self.tiling.key_block) if axes[1] else x

    def dropped(self, weights, i, j, turned=False):
        """Inverted dropout of a tile, drawn by position: every pass over a tile draws the same."""
        rate = self.tiling.dropout_rate
        if not rate:
            return weights
        heads = tf.reshape(tf.range(self.batch * self.heads * self.groups), [self.batch, self.heads, self.groups])
        rows = i * self.tiling.query_block + tf.range(self.tiling.query_block)
        keys = dropout_bits.row_keys(self.limits.seed, heads, rows)
        keys = tf.reshape(keys, [2, self.batch, self.heads, self.rows])
        columns = j * self.tiling.key_block + tf.range(self.tiling.key_block)
        keep = dropout_bits.keep_mask(keys, columns, rate)
        keep = tf.linalg.matrix_transpose(keep) if turned else keep
        return tf.where(keep, weights * (1 / (1 - rate)), tf.zeros([], weights.dtype))

    def key_tiles_of(self, i):
        """How many tiles of keys the rows of tile i may attend to: causal attention skips the rest."""
        if self.limits.positions is None:
            return self.real_key_tiles
        return tf.clip_by_value(self.reach[i] // self.tiling.key_block + 1, 0, self.real_key_tiles)

    def first_query_tile_of(self, j):
        """The first tile of queries that may attend to tile j of keys."""
        if self.limits.positions is None:
            return 0
        reaches = self.reach >= j * self.tiling.key_block
        first = tf.argmax(tf.cast(reaches, tf.int32), output_type=tf.int32)
        return tf.where(tf.reduce_any(reaches), first, self.real_query_tiles)


class _BiasGradient:
    """Sums the scores' gradient into tiles of the bias's own shape."""

    def __init__(self, tiles):
        self.tiles, self.bias = tiles, tiles.limits.bias
        if self.bias is not None:
            self.by_query, self.by_key = tiles.tiling.bias_axes
            self.rows = tiles.query_tiles if self.by_query else 1
            self.columns = tiles.key_tiles if self.by_key else 1
            query_block = tiles.tiling.query_block if self.by_query else 1
            key_block = tiles.tiling.key_block if self.by_key else 1
            self.shape = [*checks.sizes(self.bias)[:3], query_block, key_block]

    def start(self):
        """An empty loop variable without a bias."""
        return () if self.bias is None else _zeros_list(self.rows * self.columns, self.shape, self.tiles.dtype)

    def added(self, tile_list, dscores, i, j):
        """The list with one tile of turned scores' gradients added."""
        if self.bias is None:
            return ()
        tiles, tiling = self.tiles, self.tiles.tiling
        dscores = tf.reshape(dscores, [tiles.batch, tiles.heads, tiling.key_block, tiles.groups, tiling.query_block])
        dscores = _summed_to(tf.transpose(dscores, [0, 1, 3, 4, 2]), self.shape)
        index = (i if self.by_query else 0) * self.columns + (j if self.by_key else 0)
        return tile_list.write(index, tile_list.read(index) + dscores)

    def finish(self, tile_list):
        if self.bias is None:
            return None
        tiles = tf.reshape(tile_list.stack(), [self.rows, self.columns, *self.shape])
        return tf.cast(_joined(_joined(tiles, 5, source=1), 3), self.bias.dtype)


def _summed_to(x, shape):
    """Sums x over the axes along which a tensor of `shape` was broadcast to it."""
    for axis, size in enumerate(shape):
        if isinstance(size, int):
            if size == 1:
                x = tf.reduce_sum(x, axis=axis, keepdims=True)
        else:
            # Whether an axis of unknown size was broadcast shows only now: as segments, one for each entry.
            pieces = tf.shape(x)[axis] // size
            moved = tf.reshape(x, tf.concat([tf.shape(x)[:axis], [pieces, size], tf.shape(x)[axis + 1 :]], axis=0))
            x = tf.reduce_sum(moved, axis=axis)
    return x


def _cut(x, axis, index, size):
    """Slice number `index` of length `size` of an axis."""
    sizes = checks.sizes(x)
    begin = [0] * len(sizes)
    begin[axis], sizes[axis] = index * size, size
    return tf.slice(x, begin, sizes)


def _joined(tiles, axis, source=0):
    """Puts the tiles that are counted along axis `source` in a row along `axis` (numbered without `source`)."""
    order = [n for n in range(tiles.shape.rank) if n != source]
    order.insert(axis, source)
    tiles = tf.transpose(tiles, order)
    sizes = checks.sizes(tiles)
    return tf.reshape(tiles, [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]])


def _zeros_list(count, shape, dtype):
    """A TensorArray of zeros that can be added to in place."""
    zeros = tf.zeros([count, *shape], dtype)
    return tf.TensorArray(dtype, count, clear_after_read=False, element_shape=_static(shape)).unstack(zeros)


def _loop(start, stop, most, step, variables):
    """Runs step(index, *variables) for index from start to stop; XLA wants to know that it is at most `most` times."""
    return tf.while_loop(
        lambda index, *_: index < stop,
        step,
        (tf.convert_to_tensor(start, tf.int32), *variables),
        maximum_iterations=most,
        parallel_iterations=1,
    )


def _static(sizes):
    return tf.TensorShape([size if isinstance(size, int) else None for size in sizes])
