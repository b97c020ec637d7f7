"""A learned bias for each distance between two tokens, and one for each offset between two places of a grid."""

import keras
import tensorflow as tf

from keras_attention.layers.positions.schemes import DistanceScheme, PositionScheme, register
from keras_attention.ops.basics import checks, positions
from keras_attention.ops.basics.tables import with_dense_gradient
from keras_attention.ops.dense.dot_product import accumulation_dtype
from keras_attention.ops.vision import patch_grids


@register("relative")
class RelativePositionBias(DistanceScheme):
    """Adds a learned number to the score of each distance and head, with distances in buckets (T5).

    Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`, and all distances
    beyond share the last, so that any length can be read. Every attention layer has a table of its own, unlike T5,
    whose layers share that of the first.

    Args:
        num_heads: H.
        num_buckets: size of the table, for both directions together.
        max_distance: where the buckets end.
        bidirectional: whether keys ahead of the query have buckets of their own. Without a causal mask they should;
            under one half of the table would never be used: take False.
        initializer: of the table; normal with deviation 0.02.

    Call arguments:
        q_length, k_length: T and S, ints or scalar tensors; S = T by default. The last query stands at the last key.

    Returns:
        float32 [H, T, S], to be added to the scores.

    Reference: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020,
    https://arxiv.org/abs/1910.10683
    """

    def __init__(self, num_heads, num_buckets=32, max_distance=128, bidirectional=True, *, initializer=None, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.num_buckets = checks.positive_int("num_buckets", num_buckets)
        self.max_distance = checks.positive_int("max_distance", max_distance)
        self.bidirectional = bool(bidirectional)
        least = 4 if self.bidirectional else 2
        if self.num_buckets % least:
            raise ValueError(
                f"num_buckets must be a multiple of {least}{' for both directions' if self.bidirectional else ''}. Got "
                f"num_buckets={num_buckets}; use {-(-self.num_buckets // least) * least}."
            )
        exact = self.num_buckets // least
        if self.max_distance <= exact:
            raise ValueError(
                f"max_distance must be larger than the {exact} distances that have a bucket each. Got "
                f"max_distance={max_distance}; use a larger one, or fewer buckets."
            )
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(stddev=0.02))
        self.buckets = positions.relative_buckets(self.num_buckets, self.max_distance, self.bidirectional)
        # Its size depends on no input.
        self.table = self.add_weight(
            name="table", shape=(self.num_buckets, self.num_heads), initializer=self.initializer, autocast=False
        )
        self.built = True

    @classmethod
    def for_heads(cls, num_heads, causal):
        return cls(num_heads, bidirectional=not causal)

    def bias_at(self, distance):
        table = with_dense_gradient(self.table, accumulation_dtype(tf.as_dtype(self.table.dtype)))
        return positions.bucket_bias(distance, tf.gather(table, self.buckets))


@keras.saving.register_keras_serializable("keras_attention")
class RelativePositionBias2D(PositionScheme):
    """Adds a learned number to the score of each offset (rows, columns) between two places of a grid (Swin).

    The sequence is the grid in row-major order. Tokens before it (a class token) have no place on it: as in BEiT each
    head learns one number for grid to token, one for token to grid and one for token to token, which all such tokens
    share.

    Args:
        window: (h, w), the grid.
        num_heads: H.
        num_prefix_tokens: P, tokens before the grid.
        initializer: of the table; truncated normal with deviation 0.02.

    Call arguments:
        grid: None, or another grid (h', w'), ints or scalar tensors, for an image of another size: the table is
            interpolated linearly with its ends kept, as `resized` does once and for all.

    Returns:
        float32 [H, P + h w, P + h w], to be added to the scores: `layer()`.

    Reference: Liu et al., "Swin Transformer", 2021, https://arxiv.org/abs/2103.14030; Bao et al., "BEiT", 2022,
    https://arxiv.org/abs/2106.08254 (tokens outside the grid)
    """

    acts_on = "grid"

    def __init__(self, window, num_heads, num_prefix_tokens=0, *, initializer=None, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(window, list | tuple) or len(window) != 2:
            raise ValueError(f"window must be (height, width). Got window={window!r}.")
        self.window = tuple(checks.positive_int("window", size) for size in window)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.num_prefix_tokens = checks.nonnegative_int("num_prefix_tokens", num_prefix_tokens)
        self.initializer = keras.initializers.get(initializer or keras.initializers.TruncatedNormal(stddev=0.02))
        self.offsets = positions.grid_offsets(self.window)
        height, width = self.window
        self.table = self.add_weight(
            name="table",
            shape=((2 * height - 1) * (2 * width - 1), self.num_heads),
            initializer=self.initializer,
            autocast=False,
        )
        self.prefix_table = None
        if self.num_prefix_tokens:
            # Rows: from the grid to a token before it, from such a token to the grid, from one to another.
            self.prefix_table = self.add_weight(
                name="prefix_table",
                shape=(3, self.num_heads),
                initializer=type(self.initializer).from_config(self.initializer.get_config()),
                autocast=False,
            )
        self.built = True

    def __call__(self, grid=None):
        # Keras' own reads the first input, and there is none.
        return self.call(grid)

    def call(self, grid=None):
        if grid is None or (all(isinstance(n, int) for n in grid) and tuple(grid) == self.window):
            return self.bias_of_grid()
        height, width = self.window
        rows, columns = grid
        table = tf.reshape(self._wide_table(), [2 * height - 1, 2 * width - 1, self.num_heads])
        table = patch_grids.resize_table(table, 2 * rows - 1, 2 * columns - 1, patch_grids.linear_matrix)
        return self._joined(tf.reshape(table, [-1, self.num_heads]), positions.grid_offsets((rows, columns)))

    def bias_of_grid(self):
        return self._joined(self._wide_table(), self.offsets)

    def _wide_table(self):
        return with_dense_gradient(self.table, accumulation_dtype(tf.as_dtype(self.table.dtype)))

    def _joined(self, table, offsets):
        """The bias of a grid with these offsets, beside that of the tokens before it."""
        grid = tf.transpose(tf.gather(table, offsets), [2, 0, 1])
        if self.prefix_table is None:
            return grid
        heads, cells, before = self.num_heads, checks.sizes(grid)[1], self.num_prefix_tokens
        to_prefix, from_prefix, inside = tf.unstack(tf.cast(self.prefix_table, table.dtype)[..., None, None])
        top = [tf.broadcast_to(inside, [heads, before, before]), tf.broadcast_to(from_prefix, [heads, before, cells])]
        left = tf.broadcast_to(to_prefix, [heads, cells, before])
        return tf.concat([tf.concat(top, 2), tf.concat([left, grid], 2)], 1)

    def resized(self, window):
        """A layer for another grid, for images of another size: the table interpolated linearly, its ends kept.

        Args:
            window: (h', w').

        Returns:
            A `RelativePositionBias2D` with weights of its own.
        """
        layer = type(self).from_config({**self.get_config(), "window": window})
        layer.table.assign(positions.resized_offsets(self.table.numpy(), self.window, layer.window))
        if self.prefix_table is not None:
            layer.prefix_table.assign(self.prefix_table)
        return layer
