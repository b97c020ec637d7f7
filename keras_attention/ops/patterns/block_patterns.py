"""Patterns of whole blocks: neighbouring blocks (block-sparse), and those with global and random blocks (BigBird)."""

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense import dot_product, dropout_bits
from keras_attention.ops.patterns import blocks, random_keys, windows


def block_sparse(
    q,
    k,
    v,
    *,
    block_size,
    neighbours=1,
    padding_mask=None,
    use_causal_mask=False,
    distance_bias=None,
    scale=None,
    dropout_rate=0.0,
    dropout_seed=None,
):
    """Softmax attention between neighbouring blocks: a position sees all of its own block and of the nearest ones.

    Blocks are counted from the first real token, so that padding on either side changes nothing. Time and memory
    O(T block_size (2 neighbours + 1)).

    Args:
        q, k: [B, H, T, D]; v: [B, H, T, Dv]: one sequence, queries and keys alike.
        block_size: C; the last block may be shorter.
        neighbours: blocks seen on each side beside the own one; 0 = block-diagonal.
        padding_mask: boolean [B, T], True = a real token; the others are not seen and their rows are zero.
        use_causal_mask: only blocks before the own one and, of that, what is not ahead.
        distance_bias: None, or a function from int32 [B or 1, H or 1, ...], key position minus query position among the
            real tokens, to numbers [B or 1, H, ...] that are added to the scores.
        scale, dropout_rate, dropout_seed: see `windows.local`.

    Returns:
        [B, H, T, Dv] in q's dtype; rows without a key are zero.

    Reference: the documents, 3.1 (1); Child et al., "Generating Long Sequences with Sparse Transformers", 2019,
    https://arxiv.org/abs/1904.10509, and Qiu et al., "Blockwise Self-Attention for Long Document Understanding", 2019,
    https://arxiv.org/abs/1911.02972, for blocks as the unit of a pattern.
    """
    dot_product.check_qkv(q, k, v)
    windows.check_one_sequence("block_sparse", q, k)
    options = dict(
        use_causal_mask=use_causal_mask,
        distance_bias=distance_bias,
        scale=scale,
        dropout_rate=dropout_rate,
        dropout_seed=dropout_seed,
    )
    if padding_mask is None:
        return _neighbouring(q, k, v, block_size, neighbours, None, **options)
    order, rank, count = blocks.pack(padding_mask)
    packed = [blocks.take(x, order[:, None]) for x in (q, k, v)]
    return blocks.unpacked(_neighbouring(*packed, block_size, neighbours, count, **options), rank, count)


def _neighbouring(q, k, v, block_size, neighbours, count, *, use_causal_mask, distance_bias, **options):
    length = checks.sizes(q)[2]
    reach = neighbours * block_size
    layout = windows.BandLayout(
        length, length, before=reach, after=0 if use_causal_mask else reach, block_size=block_size
    )
    real = None if count is None else tf.range(length) < count[:, None]
    allowed = layout.key_mask(real)[:, None, :, None, :]
    if use_causal_mask:
        allowed = masks.joined(allowed, layout.distance() <= 0)
    return layout.rows(
        blocks.attend(
            layout.queries(q),
            layout.keys(k),
            layout.keys(v),
            allowed,
            bias=layout.bias(distance_bias),
            **options,
        )
    )


def bigbird(
    q,
    k,
    v,
    *,
    block_size,
    neighbours=1,
    num_global_blocks=1,
    num_random_blocks=3,
    seed=0,
    padding_mask=None,
    use_causal_mask=False,
    distance_bias=None,
    scale=None,
    dropout_rate=0.0,
    dropout_seed=None,
):
    """Softmax attention of BigBird: neighbouring blocks, global blocks and random blocks.

    A block of queries sees its own block and `neighbours` on each side, the first `num_global_blocks` blocks, and
    `num_random_blocks` of the remaining ones, drawn for each head from `seed` and the number of the block alone: the
    same in every batch, process and runtime. The global blocks see everything. Blocks are counted from the first real
    token. Time and memory O(T C (2 neighbours + 1 + global + random)).

    Args:
        q, k: [B, H, T, D]; v: [B, H, T, Dv]: one sequence, queries and keys alike.
        block_size: C; the last block may be shorter.
        padding_mask: boolean [B, T], True = a real token; the others are not seen and their rows are zero.
        use_causal_mask: everything of the pattern that is not ahead; random blocks come from before the window.
        distance_bias: None, or a function from int32 [B or 1, H or 1, ...], key position minus query position among the
            real tokens, to numbers [B or 1, H, ...] that are added to the scores.
        scale, dropout_rate, dropout_seed: see `windows.local`.

    Returns:
        [B, H, T, Dv] in q's dtype; rows without a key are zero.

    Reference: Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020, https://arxiv.org/abs/2007.14062
    (BigBird-ITC). The authors' code makes the first and the last block global; here the first ones are, so that the
    pattern has a causal form and does not move when the text grows.
    """
    dot_product.check_qkv(q, k, v)
    windows.check_one_sequence("bigbird", q, k)
    count = rank = None
    if padding_mask is not None:
        order, rank, count = blocks.pack(padding_mask)
        q, k, v = (blocks.take(x, order[:, None]) for x in (q, k, v))
    length = checks.sizes(q)[2]
    reach = neighbours * block_size
    layout = windows.BandLayout(
        length, length, before=reach, after=0 if use_causal_mask else reach, block_size=block_size
    )
    options = dict(scale=scale, dropout_rate=dropout_rate)
    real = tf.range(length)[None] < (length if count is None else count[:, None])  # [B or 1, T]
    bias = distance_bias or (lambda distance: None)
    places = layout.query_places()[..., None]  # [N, C, 1]
    window = _window_part(layout, real, num_global_blocks, use_causal_mask)
    parts = [(layout.keys(k), layout.keys(v), window, layout.bias(distance_bias))]
    if num_global_blocks:
        # Keys of the global blocks lie before all other blocks, so causality takes nothing from them.
        edge = num_global_blocks * block_size
        first = tf.range(length)[:edge]
        shared_bias = bias((first - places)[None, None])
        parts.append((k[:, :, :edge], v[:, :, :edge], real[:, None, None, None, :edge], shared_bias))
    if num_random_blocks:
        own = tf.range(layout.count)[None, None, :, None]
        existing = tf.reshape(blocks.ceil_divide(length if count is None else count, layout.size), [-1, 1, 1, 1])
        drawn = random_blocks(
            own,
            checks.sizes(k)[1],
            num_random_blocks,
            seed,
            neighbours,
            num_global_blocks,
            None if use_causal_mask else existing,
        )
        keys, values, allowed, at = _random_part(layout, k, v, count, length, drawn)
        parts.append((keys, values, allowed, bias(at - places)))
    out = layout.rows(blocks.attend_together(layout.queries(q), parts, dropout_seed=dropout_seed, **options))
    if num_global_blocks:
        allowed = real[:, None, None, :]
        ahead = (tf.range(length) - first[:, None])[None, None]
        if use_causal_mask:
            allowed = masks.joined(allowed, ahead <= 0)
        other_seed = dropout_bits.stream(dropout_seed, 1)
        rows = blocks.attend(q[:, :, :edge], k, v, allowed, bias=bias(ahead), dropout_seed=other_seed, **options)
        out = tf.concat([rows, out[:, :, edge:]], axis=2)
    return out if rank is None else blocks.unpacked(out, rank, count)


def _window_part(layout, real, num_global_blocks, use_causal_mask):
    """Boolean [B or 1, 1, N, C or 1, M]: real keys of the neighbourhood that are not in a global block."""
    own = tf.range(layout.count)[:, None] - layout.blocks_before
    numbers = own + tf.range(layout.neighbours * layout.size) // layout.size  # [N, M]: the block of each key
    allowed = tf.logical_and(layout.key_mask(real), numbers >= num_global_blocks)[:, None, :, None, :]
    return masks.joined(allowed, layout.distance() <= 0) if use_causal_mask else allowed


def random_blocks(own, heads, num_random, seed, neighbours, num_global, last=None):
    """Draws blocks that are neither global nor in the window of a block.

    Args:
        own: int32 [B or 1, 1, N, 1], numbers of the blocks that look.
        heads: H.
        last: int32, broadcastable to own: number of blocks that there are to look at; None = only those before `own`.

    Returns:
        `(index, chosen)`: int32 [B or 1, H, N, R], and boolean, False where there was nothing left to draw.
    """
    ahead = own - neighbours if last is None else tf.minimum(own - neighbours, last)
    before = tf.maximum(ahead - num_global, 0)
    resume = tf.maximum(own + neighbours + 1, num_global)
    after = tf.zeros_like(before) if last is None else tf.maximum(last - resume, 0)
    draw = random_keys.hashed(seed, tf.range(heads)[:, None, None], tf.maximum(own, 0), tf.range(num_random))
    choice, chosen = random_keys.one_of_each_share(draw, before + after, num_random)
    index = tf.where(choice < before, num_global + choice, resume + choice - before)
    return tf.where(chosen, index, 0), chosen


def _random_part(layout, k, v, count, length, drawn):
    """The keys of random blocks: k, v [B, H, N, R C, D], which are open and their places, [B or 1, H, N, 1, R C]."""
    size, number = layout.size, layout.count
    index, chosen = drawn
    real = tf.reshape(length if count is None else count, [-1, 1, 1, 1, 1])
    places = index[..., None] * size + tf.range(size)  # [B or 1, H, N, R, C]
    allowed = tf.logical_and(chosen[..., None], places < real)
    keys, values = (
        blocks.merge(blocks.take(blocks.split(blocks.padded(x, 2, 0, layout.tail), 2, number, size), index), 3)
        for x in (k, v)
    )
    return keys, values, *(blocks.merge(x, 3)[:, :, :, None, :] for x in (allowed, places))
