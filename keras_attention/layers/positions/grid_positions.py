"""Learnable positions of the patches of an image, at any size of it."""

import keras
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.vision import patch_grids
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class GridPositions(Recorded, keras.layers.Layer):
    """Adds one trained vector per place of a grid, and one to each token that stands before the grid.

    Another grid than the trained one gets the table interpolated bicubically (half-pixel centres, no antialiasing, as
    PyTorch resizes the tables of published models); tokens before the grid keep their vectors.

    Args:
        grid: (rows, columns) of the table.
        d_model: width.
        num_prefix_tokens: tokens before the grid, such as a class token.
        initializer: of the table [num_prefix_tokens + rows * columns, d_model]; normal with deviation 0.02.

    Call arguments:
        x: [B, num_prefix_tokens + rows * columns, d_model].
        grid: (rows, columns) of x, ints or scalar tensors; the trained grid by default.

    Returns:
        As x, in the compute dtype.

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929
    """

    def __init__(self, grid, d_model, *, num_prefix_tokens=0, initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.grid = patch_grids.pair("grid", grid)
        self._record(grid=self.grid)
        self.d_model = checks.positive_int("d_model", d_model)
        self.num_prefix_tokens = checks.nonnegative_int("num_prefix_tokens", num_prefix_tokens)
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(stddev=0.02))
        self.supports_masking = True

    def build(self, x_shape=None):
        rows, columns = self.grid
        self.position_emb = self.add_weight(
            name="position_emb",
            shape=(self.num_prefix_tokens + rows * columns, self.d_model),
            initializer=self.initializer,
            # Half precision would round the table before it is interpolated.
            autocast=False,
        )

    def call(self, x, grid=None):
        table = tf.convert_to_tensor(self.position_emb)
        # Sizes that only the graph knows are interpolated too: to the trained grid that changes nothing.
        if grid is not None and not (all(isinstance(n, int) for n in grid) and tuple(grid) == self.grid):
            prefix, patches = table[: self.num_prefix_tokens], table[self.num_prefix_tokens :]
            patches = patch_grids.resize_table(tf.reshape(patches, [*self.grid, self.d_model]), *grid)
            table = tf.concat([prefix, tf.reshape(patches, [-1, self.d_model])], axis=0)
        return x + tf.cast(table, x.dtype)

    def compute_output_shape(self, x_shape):
        return x_shape
