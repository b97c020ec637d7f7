"""How the axes of queries and keys are cut into tiles, and what is padded for that."""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_attention.ops.basics import checks


class Plan(NamedTuple):
    """How one axis is cut: `room`, a multiple of `block`, is `length` and padding. Ints where static, else scalars."""

    length: Any
    room: Any
    block: Any
    exact: bool  # room equals length


def plan(length, block, longest, compiled):
    """Cuts an axis into blocks.

    Args:
        length: int, or an int32 scalar where the size is not static.
        block: the block's size, or None to choose one of at most `longest`.
        longest: see `block`.
        compiled: whether every new `room` costs a compilation.

    Returns:
        A `Plan`. Where many lengths may come (not static, or in eager code) its blocks and rooms take few values.
    """
    if not isinstance(length, int):
        if block is None:
            # Plain loops take any size of block: a short sequence need not be padded to a long one.
            block = longest if compiled else tf.clip_by_value(length, 1, longest)
        count = tf.maximum(blocks_in(length, block), 1)
        return Plan(length, (_rounded(count) if compiled else count) * block, block, False)
    if tf.executing_eagerly():
        block = block or min(longest, max(16, 1 << (length - 1).bit_length()))
        room = int(_rounded(max(1, blocks_in(length, block)))) * block
        return Plan(tf.constant(length), room, block, room == length)
    # One static length: cut evenly, so that 300 becomes 2 x 152 and not 2 x 256. Blocks are multiples of 8 where there
    # are several, which vector units like.
    if block is None:
        count = max(1, blocks_in(length, longest))
        block = length if count == 1 else blocks_in(length, 8 * count) * 8
    block = max(1, min(block, length))
    room = max(1, blocks_in(length, block)) * block
    return Plan(length, room, block, room == length)


def longest_block(batch, heads, compiled):
    """The side of a tile: large for the sake of matrix products, small enough that all heads' scores stay in cache.

    Args:
        batch: int, or a scalar tensor where it is not static (taken as one).
        heads: int.
        compiled: XLA keeps its tiles in cache at 256; plain operations cost more each and like them larger.
    """
    pairs = heads * batch if isinstance(batch, int) else heads
    for block in (256,) if compiled else (512, 256):
        if pairs * block * block <= 2**21:
            return block
    return 128


def blocks_in(length, block):
    """ceil(length / block). Without negative numbers: ONNX's integer division rounds to zero, TensorFlow's down."""
    return (length + block - 1) // block


def _rounded(count):
    """The next of 1 ... 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: four sizes for each doubling."""
    steps = tf.constant([1 << n for n in range(24)])
    step = tf.reduce_max(tf.where(steps * 4 < count, steps, tf.ones_like(steps)))
    return blocks_in(count, step) * step


def padded(x, rooms, fill=0):
    """Pads axes at their end. `rooms`: axis -> `Plan`."""
    if all(plan.exact for plan in rooms.values()):
        return x
    sizes = checks.sizes(x)
    paddings = [[0, rooms[axis].room - size] if axis in rooms else [0, 0] for axis, size in enumerate(sizes)]
    known = [rooms[axis].room if axis in rooms else size for axis, size in enumerate(x.shape)]
    x = tf.pad(x, paddings, constant_values=fill)
    return tf.ensure_shape(x, [size if isinstance(size, int) else None for size in known])


def by_group(x, name, sizes, kv_heads, query_plan, key_plan):
    """Brings a mask or a bias to the shape that the tiles read.

    Args:
        x: rank 4, broadcastable to [B, H, T, S].
        name: of the argument, for the error.
        sizes: (B, H, T, S), ints where static.
        kv_heads: K.
        query_plan, key_plan: the `Plan` of T and S.

    Returns:
        [B|1, K|1, G|1, T|1, S|1] with T and S padded to their rooms, and whether it has an axis T and an axis S.
    """
    for size, wanted in zip(x.shape, sizes):
        if size not in (None, 1) and isinstance(wanted, int) and size != wanted:
            shown = ", ".join(str(n) if isinstance(n, int) else "unknown" for n in sizes)
            raise ValueError(f"{name} must broadcast to [B, H, T, S] = [{shown}]. Got shape {tuple(x.shape)}.")
    whole = [size != 1 for size in x.shape]
    if None in x.shape[1:]:
        # An axis of unknown size may turn out to be 1; the loops must know.
        now = checks.sizes(x)
        x = tf.broadcast_to(x, [now[0], *(sizes[n] if x.shape[n] is None else now[n] for n in (1, 2, 3))])
    x = padded(x, {axis: plan for axis, plan in ((2, query_plan), (3, key_plan)) if whole[axis]})
    first, _, rows, columns = checks.sizes(x)
    heads = [kv_heads, sizes[1] // kv_heads] if whole[1] else [1, 1]
    return tf.reshape(x, [first, *heads, rows, columns]), tuple(whole[2:])
