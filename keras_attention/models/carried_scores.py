"""Residual attention through a stack of blocks: the last ones add the scores of the block before."""

from keras_attention.ops.basics import checks


def checked(count, remat, **depths):
    """`count`, how many of a model's last blocks get the scores of the one before, or a ValueError.

    Args:
        count: 0 for none.
        remat: the model's option, which cannot be combined with it.
        **depths: names and values of the options that say how many blocks there are.
    """
    count = checks.nonnegative_int("residual_attention_layers", count)
    for name, depth in depths.items():
        if count and (depth < 2 or count > depth):
            raise ValueError(
                "residual_attention_layers must be at most the number of blocks, of which there must be at least two. "
                f"Got residual_attention_layers={count}, {name}={depth}."
            )
    if count and remat:
        raise ValueError(
            f"residual_attention_layers={count} keeps the scores of one block for the next, and remat=True keeps "
            "nothing: give one of them."
        )
    return count


def check_mechanisms(blocks, count):
    """Raises where a block that has to give or take scores attends in a way that has none."""
    for block in blocks[max(len(blocks) - count, 1) - 1 :] if count else ():
        for attention in (block.attention, getattr(block, "cross_attention", None)):
            if attention is not None and not attention.mechanism.supports.residual:
                attention.mechanism.refuse(f"residual_attention_layers={count}", "mechanism='softmax'")


class CarriedScores:
    """The way of scores through one pass over a stack.

    Block i of `depth` gets the scores of block i - 1 where it is one of the last `count`. The first block of a stack
    has none before it.

    Args:
        depth: number of blocks.
        count: how many of the last ones get scores.
    """

    def __init__(self, depth, count):
        self._first = max(depth - count, 1)
        self._depth = depth
        self._scores = None

    def through(self, index, block, *inputs, **options):
        """What block number `index` gives for these arguments, the scores taken out and kept for the next."""
        if index >= self._first:
            options["previous_scores"] = self._scores
        if not self._first <= index + 1 < self._depth:
            return block(*inputs, **options)
        y, self._scores, *state = block(*inputs, **options, return_raw_scores=True)
        return (y, *state) if state else y
