"""Grids cut into windows, and shifted so that the next windows straddle the borders of the last."""

import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.vision import patch_grids


def shift_of(rows, columns, window, shift):
    """The shift of a grid: none where one side fits into a window. An int, or a tensor where a size is one."""
    if shift == 0:
        return 0
    if isinstance(rows, int) and isinstance(columns, int):
        return 0 if min(rows, columns) <= window else shift
    return tf.where(tf.minimum(rows, columns) <= window, 0, shift)


def roll(x, shift):
    """x [B, H, W, C] moved cyclically up and left by `shift` places."""
    x = tf.concat([x[:, shift:], x[:, :shift]], axis=1)
    return tf.concat([x[:, :, shift:], x[:, :, :shift]], axis=2)


def roll_back(x, shift):
    """Undoes `roll`."""
    _, rows, columns, _ = checks.sizes(x)
    x = tf.concat([x[:, rows - shift :], x[:, : rows - shift]], axis=1)
    return tf.concat([x[:, :, columns - shift :], x[:, :, : columns - shift]], axis=2)


def partition(x, window):
    """[B, H, W, C] -> [B * windows, window * window, C]; H and W are multiples of the window."""
    batch, rows, columns, features = checks.sizes(x)
    x = tf.reshape(x, [batch, rows // window, window, columns // window, window, features])
    return tf.reshape(tf.transpose(x, [0, 1, 3, 2, 4, 5]), [-1, window * window, features])


def merge(windows, batch, rows, columns):
    """Undoes `partition`: [B * windows, window * window, C] -> [B, rows, columns, C]."""
    _, area, features = windows.shape
    window = round(area**0.5)
    x = tf.reshape(windows, [batch, rows // window, columns // window, window, window, features])
    return tf.reshape(tf.transpose(x, [0, 1, 3, 2, 4, 5]), [batch, rows, columns, features])


def shifted_mask(rows, columns, window, shift):
    """Boolean [windows, window * window, window * window], True = may attend, of a padded grid that was rolled.

    The last windows of a rolled grid hold what stood at opposite borders: only places that were neighbours may attend
    to each other.
    """
    regions = []
    for size in (rows, columns):
        place = tf.range(size)
        regions.append(tf.cast(place >= size - window, tf.int32) + tf.cast(place >= size - shift, tf.int32))
    region = regions[0][:, None] * 3 + regions[1]
    region = partition(region[None, :, :, None], window)[..., 0]  # [windows, window * window]
    return tf.equal(region[:, :, None], region[:, None, :])


def attend_in_windows(attend, x, window, shift):
    """Calls `attend(windows [B * n, window * window, C], mask)` on the windows of x [B, H, W, C].

    The grid is padded with zeros below and to the right to multiples of the window, and the result cropped. The zeros
    take part as keys, as in the published models; only `shift`ed grids have a mask, boolean [n, area, area].

    Returns:
        [B, H, W, C'].
    """
    _, rows, columns, _ = checks.sizes(x)
    shift = shift_of(rows, columns, window, shift)
    whole = patch_grids.pad_to_multiple(x, (window, window))
    batch, whole_rows, whole_columns, _ = checks.sizes(whole)
    shifted = not (isinstance(shift, int) and shift == 0)
    mask = shifted_mask(whole_rows, whole_columns, window, shift) if shifted else None
    y = attend(partition(roll(whole, shift) if shifted else whole, window), mask)
    y = merge(y, batch, whole_rows, whole_columns)
    if shifted:
        y = roll_back(y, shift)
    return y[:, :rows, :columns]
