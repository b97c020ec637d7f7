"""Attention to neighbouring, global and random blocks."""

from keras_attention.mechanisms.base import register
from keras_attention.mechanisms.pattern import Pattern, supports
from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import block_patterns


@register("bigbird")
class BigBirdAttention(Pattern):
    """Softmax attention of BigBird: neighbouring blocks, a few global blocks and a few random ones.

    The global and random blocks keep any two positions within a few steps of each other, which a window alone does not:
    choose it for long documents. Time and memory O(T block_size (2 neighbours + 1 + global + random)). The random
    blocks follow from `seed`, the head and the block's number alone, so that the pattern is the same after loading, in
    every batch and in every runtime. Blocks are counted from the first real token; rows of padding are zero. With a
    decoding state new tokens are compared with every stored key and masked: O(T S), S for one token.

    Args:
        block_size: positions per block; the last block may be shorter.
        neighbours: blocks seen on each side of the own one.
        num_global_blocks: first blocks of the text, which see all and are seen by all.
        num_random_blocks: further blocks that each block sees, drawn for each head.
        seed: of the draw. Layers with one seed share one pattern, and so do the blocks of a model.

    Reference: Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020, https://arxiv.org/abs/2007.14062. The
    authors' code makes the last block global too; here only the first ones are, so that there is a causal form.
    """

    supports = supports(
        state="kv",
        time="T*block_size*(2*neighbours+1+num_global_blocks+num_random_blocks)",
        memory="T*block_size*(2*neighbours+1+num_global_blocks+num_random_blocks)",
        paper="Zaheer et al. 2020, https://arxiv.org/abs/2007.14062",
    )

    def __init__(self, block_size=64, neighbours=1, num_global_blocks=2, num_random_blocks=3, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.block_size = checks.positive_int("block_size", block_size)
        self.neighbours = checks.nonnegative_int("neighbours", neighbours)
        self.num_global_blocks = checks.nonnegative_int("num_global_blocks", num_global_blocks)
        self.num_random_blocks = checks.nonnegative_int("num_random_blocks", num_random_blocks)
        self.seed = checks.nonnegative_int("seed", seed)

    def pattern(self, q, k, v, **options):
        return block_patterns.bigbird(
            q,
            k,
            v,
            block_size=self.block_size,
            neighbours=self.neighbours,
            num_global_blocks=self.num_global_blocks,
            num_random_blocks=self.num_random_blocks,
            seed=self.seed,
            **options,
        )

    def sees(self, heads, query, key):
        query, key = query // self.block_size, key // self.block_size
        seen = (query - key <= self.neighbours) | (key < self.num_global_blocks) | (query < self.num_global_blocks)
        if self.num_random_blocks:
            index, chosen = block_patterns.random_blocks(
                query, heads, self.num_random_blocks, self.seed, self.neighbours, self.num_global_blocks
            )
            for slot in range(self.num_random_blocks):
                here = slice(slot, slot + 1)
                seen |= chosen[..., here] & (index[..., here] == key)
        return seen
