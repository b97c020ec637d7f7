"""Attention between neighbouring blocks."""

from keras_attention.mechanisms.base import register
from keras_attention.mechanisms.pattern import Pattern, supports
from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import block_patterns


@register("block_sparse")
class BlockSparseAttention(Pattern):
    """Softmax attention in which a position sees all of its own block and of the neighbouring blocks.

    The documents' way (3.1) to make long sequences fit into memory. Unlike `local` the reach depends on the place in
    the block, but all work is whole blocks. Time and memory O(T block_size (2 neighbours + 1)). Blocks are counted from
    the first real token; rows of padding are zero. With a decoding state new tokens are compared with every stored key
    and masked: O(T S), S for one token.

    Args:
        block_size: positions per block; the last block may be shorter. 64 by default.
        neighbours: blocks seen on each side of the own one; 0 = block-diagonal.

    Reference: Qiu et al., "Blockwise Self-Attention for Long Document Understanding", 2019,
    https://arxiv.org/abs/1911.02972 (blocks paired by permutations; here by neighbourhood)
    """

    supports = supports(
        state="kv",
        time="T*block_size*(2*neighbours+1)",
        memory="T*block_size*(2*neighbours+1)",
        paper="Qiu et al. 2019, https://arxiv.org/abs/1911.02972",
    )

    def __init__(self, block_size=64, neighbours=1, **kwargs):
        super().__init__(**kwargs)
        self.block_size = checks.positive_int("block_size", block_size)
        self.neighbours = checks.nonnegative_int("neighbours", neighbours)

    def pattern(self, q, k, v, **options):
        return block_patterns.block_sparse(q, k, v, block_size=self.block_size, neighbours=self.neighbours, **options)

    def sees(self, heads, query, key):
        return query // self.block_size - key // self.block_size <= self.neighbours
