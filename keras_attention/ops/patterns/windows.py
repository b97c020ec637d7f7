"""Attention to neighbours: a sliding window of a radius, and whole neighbouring blocks."""

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense import dot_product
from keras_attention.ops.patterns import blocks

# Blocks shorter than this would make many products too small to be worth a call.
SMALLEST_BLOCK = 16


def local(
    q,
    k,
    v,
    *,
    radius,
    padding_mask=None,
    use_causal_mask=False,
    distance_bias=None,
    scale=None,
    dropout_rate=0.0,
    dropout_seed=None,
):
    """Softmax attention in which position i sees the positions j with |i - j| <= radius, both ends included.

    With `use_causal_mask` it sees i - radius <= j <= i: radius + 1 keys ("a causal window of 2" elsewhere is radius 1).
    Keys are laid out in overlapping blocks (previous, own, next), so that time and memory are O(T radius) and no [T, S]
    table exists. With T != S the last query sits at the last key, as for causal masks; only the last T + radius keys
    are read.

    Args:
        q: [B, H, T, D].
        k: [B, H, S, D].
        v: [B, H, S, Dv].
        radius: farthest distance that is seen, in positions of the sequence as given (padding counts as distance).
        padding_mask: boolean [B, S], True = a real key.
        use_causal_mask: see above.
        distance_bias: None, or a function from int32 [1, 1, C, M], key place minus query place, to numbers
            [1, H, C, M] that are added to the scores: they are the same in all blocks.
        scale: factor on the scores; 1 / sqrt(D) by default.
        dropout_rate, dropout_seed: see `dropout.dropped`.

    Returns:
        [B, H, T, Dv] in q's dtype; rows without a key are zero.

    Reference: Beltagy et al., "Longformer: The Long-Document Transformer", 2020, https://arxiv.org/abs/2004.05150
    (its sliding window); Parmar et al., "Image Transformer", 2018, https://arxiv.org/abs/1802.05751 (blocks).
    """
    dot_product.check_qkv(q, k, v)
    lengths = checks.sizes(q)[2], checks.sizes(k)[2]
    layout = BandLayout(*lengths, before=radius, after=0 if use_causal_mask else radius)
    keys = layout.keys(k)
    allowed = masks.joined(layout.band(), layout.key_mask(padding_mask)[:, None, :, None, :])
    return layout.rows(
        blocks.attend(
            layout.queries(q),
            keys,
            layout.keys(v),
            allowed,
            bias=layout.bias(distance_bias),
            scale=scale,
            dropout_rate=dropout_rate,
            dropout_seed=dropout_seed,
        )
    )


class BandLayout:
    """Where everything lies when T queries see a band of S keys: N blocks of C queries with M keys each.

    The last query is aligned with the last key. Sizes are ints where they are static and scalar tensors where not.

    Args:
        query_length, key_length: T and S.
        before, after: how many keys behind and ahead of its own position a query sees.
        block_size: C; by default what makes one neighbouring block per side enough.
    """

    def __init__(self, query_length, key_length, *, before, after, block_size=None):
        self.before, self.after = before, after
        self.query_length = query_length
        # Keys that no query can reach are cut off, so that a step with a long past costs O(before).
        self.key_length = blocks.minimum(key_length, query_length + before)
        self.first_key = key_length - self.key_length
        length = blocks.maximum(query_length, self.key_length)
        wished = block_size or max(before, after, SMALLEST_BLOCK)
        self.size = blocks.block_size_for(length, wished)
        self.count = blocks.maximum(blocks.ceil_divide(length, self.size), 1)
        # In units of `wished`: a block that was shortened holds the whole sequence and has no real neighbours.
        self.blocks_before = -(-before // wished)
        self.blocks_after = -(-after // wished)
        self.neighbours = self.blocks_before + 1 + self.blocks_after
        self.query_shift = length - query_length
        self.key_shift = length - self.key_length
        self.tail = self.count * self.size - length

    def queries(self, q):
        """[B, H, T, D] -> [B, H, N, C, D]."""
        return blocks.split(blocks.padded(q, 2, self.query_shift, self.tail), 2, self.count, self.size)

    def keys(self, x, axis=2):
        """[..., S, ...] -> [..., N, M, ...] along `axis`."""
        x = x[(*[slice(None)] * axis, slice(self.first_key, None))]
        front, back = self.blocks_before * self.size, self.blocks_after * self.size
        x = blocks.padded(x, axis, front + self.key_shift, self.tail + back)
        x = blocks.split(x, axis, self.count + self.neighbours - 1, self.size)
        return blocks.side_by_side(x, axis, self.count, self.neighbours)

    def key_mask(self, padding_mask=None):
        """Which of the keys laid out are real: boolean [B or 1, N, M]."""
        if padding_mask is None:
            padding_mask = tf.ones([1, self.first_key + self.key_length], tf.bool)
        return self.keys(padding_mask, axis=1)

    def distance(self):
        """int32 [C, M]: how far ahead of the query a key of the block's neighbourhood lies."""
        own = tf.range(self.size)[:, None] + self.blocks_before * self.size
        return tf.range(self.neighbours * self.size) - own

    def band(self):
        """Boolean [C, M]: which keys are within reach."""
        distance = self.distance()
        return tf.logical_and(distance >= -self.before, distance <= self.after)

    def bias(self, distance_bias):
        """[1, H, 1, C, M] of a function of the distance, or None: every block has the same distances."""
        return None if distance_bias is None else distance_bias(self.distance()[None, None])[:, :, None]

    def query_places(self):
        """int32 [N, C]: places of the queries, for a layout in which queries and keys are one sequence."""
        return blocks.split(tf.range(self.count * self.size), 0, self.count, self.size)

    def rows(self, out):
        """[B, H, N, C, D] -> [B, H, T, D]."""
        return blocks.merge(out, 2)[:, :, self.query_shift : self.query_shift + self.query_length]


def check_one_sequence(name, q, k):
    """Raises where queries and keys have different static lengths."""
    if not q.shape[2:3].is_compatible_with(k.shape[2:3]):
        raise ValueError(
            f"{name} attends inside one sequence: q and k must have one length. Got {q.shape[2]} and {k.shape[2]}; "
            "use softmax attention across two sequences."
        )
