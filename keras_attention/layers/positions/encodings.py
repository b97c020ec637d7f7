"""Position encodings that are added to embeddings: learnable and sinusoidal."""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.basics.tables import with_dense_gradient
from keras_attention.ops.dense.dot_product import accumulation_dtype
from keras_attention.recorded import Recorded

BEYOND = ("error", "interpolate", "clip")


@keras.saving.register_keras_serializable("keras_attention")
class PositionalEncoding(Recorded, keras.layers.Layer):
    """Learnable positions: adds one trained vector per position, the documents' layer of that name.

    What happens beyond `max_len` is said by `beyond`:

    - "error": refused, where the length is known (eager, or static in a graph). Where only the graph knows it, the
      positions past the end are NaN: XLA drops assertions and clamps indices, and a wrong row would pass for a right
      one.
    - "interpolate": a longer sequence stretches the table linearly over its length (as ViT does for larger images).
      Not with `positions`, whose sequence has no length yet.
    - "clip": positions past the end share the last vector.

    Args:
        max_len: number of positions.
        d_model: width.
        beyond: see above.
        initializer: of the table; normal with deviation 0.02.

    Call arguments:
        x: [B, T, d_model].
        positions: integer [B, T] or [T], the position of each token, for decoding with a state; 0 .. T - 1 by default.
        limit: where it is known that all positions lie below it; an int of at most `max_len` saves their check.

    Returns:
        [B, T, d_model] in the compute dtype. The implicit mask of x goes on.

    Reference: Gehring et al., "Convolutional Sequence to Sequence Learning", 2017, https://arxiv.org/abs/1705.03122
    """

    def __init__(self, max_len, d_model, *, beyond="error", initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.max_len = checks.positive_int("max_len", max_len)
        self.d_model = checks.positive_int("d_model", d_model)
        self.beyond = checks.one_of("beyond", beyond, BEYOND)
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(stddev=0.02))
        self.supports_masking = True

    def build(self, x_shape):
        if x_shape[-1] != self.d_model:
            raise ValueError(f"PositionalEncoding(d_model={self.d_model}) got an input of width {x_shape[-1]}.")
        self.position_emb = self.add_weight(
            name="position_emb", shape=(self.max_len, self.d_model), initializer=self.initializer, autocast=False
        )

    def call(self, x, positions=None, limit=None):
        table = with_dense_gradient(self.position_emb, x.dtype)
        length = checks.sizes(x)[1]
        if self.beyond == "interpolate":
            if positions is not None:
                raise ValueError(
                    "beyond='interpolate' stretches the table over a sequence's length, which positions= does not "
                    "tell: use beyond='clip' or 'error' with positions=."
                )
            return x + self._stretched(table, length)
        what, remedy = f"positions (max_len={self.max_len})", "a larger max_len or beyond="
        if isinstance(limit, int) and limit <= self.max_len and self.beyond == "error" and positions is not None:
            return x + tf.gather(table, positions)
        positions = tf.range(length) if positions is None else tf.cast(positions, tf.int32)
        if self.beyond == "clip":
            return x + tf.gather(table, tf.clip_by_value(positions, 0, self.max_len - 1))
        return x + rows_or_nan(table, positions, what, remedy)

    def _stretched(self, table, length):
        # Endpoints stay endpoints; up to max_len nothing is stretched.
        dtype = accumulation_dtype(table.dtype)
        step = tf.cast(self.max_len - 1, dtype) / tf.cast(tf.maximum(length - 1, 1), dtype)
        place = tf.cast(tf.range(length), dtype)
        place = tf.where(length > self.max_len, place * step, place)
        low = tf.minimum(tf.cast(tf.floor(place), tf.int32), self.max_len - 1)
        share = tf.cast(place - tf.cast(low, dtype), table.dtype)[:, None]
        high = tf.minimum(low + 1, self.max_len - 1)
        return tf.gather(table, low) * (1 - share) + tf.gather(table, high) * share

    def compute_output_shape(self, x_shape):
        return x_shape


@keras.saving.register_keras_serializable("keras_attention")
class SinusoidalEncoding(Recorded, keras.layers.Layer):
    """Fixed positions: sines and cosines of falling frequency, right at any position.

    Feature 2i is sin(p / 10000^(2i/d)), feature 2i+1 the cosine of the same. Angles are computed in at least float32
    whatever the policy: 257 is not a bfloat16 number.

    Call arguments:
        x: [B, T, d].
        positions: integer [B, T] or [T]; 0 .. T - 1 by default.
        limit: where it is known that all positions lie below it: that many angles are computed, not one for each token.

    Returns:
        [B, T, d] in the compute dtype. The implicit mask of x goes on.

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, x_shape):
        if x_shape[-1] is None:
            raise ValueError("SinusoidalEncoding needs a known width. Got an input of unknown width.")

    def call(self, x, positions=None, limit=None):
        width = x.shape[-1]
        dtype = accumulation_dtype(x.dtype)
        if limit is not None and positions is not None:
            return x + tf.gather(tf.cast(sinusoids(tf.range(limit), width, dtype), x.dtype), positions)
        positions = tf.range(checks.sizes(x)[1]) if positions is None else positions
        return x + tf.cast(sinusoids(positions, width, dtype), x.dtype)

    def compute_output_shape(self, x_shape):
        return x_shape


def sinusoids(positions, width, dtype=tf.float32):
    """Interleaved sines and cosines, [..., width] of `dtype`, of integer positions [...]."""
    pair = np.arange(width) // 2
    frequencies = tf.constant(10000.0 ** (-2.0 * pair / width), dtype)
    # A cosine is a sine a quarter turn on; two tables would need an interleave.
    is_cosine = tf.constant(np.arange(width) % 2, dtype)
    angles = tf.cast(positions, dtype)[..., None] * frequencies
    return tf.sin(angles) * (1 - is_cosine) + tf.cos(angles) * is_cosine


def rows_or_nan(table, index, what, remedy):
    """Rows of `table` [N, E] at `index`, where an index outside 0 .. N - 1 never passes for another row.

    Eager code raises. A graph, where XLA clamps indices and drops assertions, gives NaN.
    """
    size = table.shape[0]
    index = tf.convert_to_tensor(index)
    known = tf.get_static_value(index) if not checks.is_concrete(index) else index.numpy()
    if known is not None and known.size and (known.min() < 0 or known.max() >= size):
        wrong = known.max() if known.max() >= size else known.min()
        raise ValueError(f"{what} must lie in 0 .. {size - 1}. Got {wrong}; use {remedy}.")
    if known is not None:
        return tf.gather(table, index)
    rows = tf.gather(table, tf.clip_by_value(index, 0, size - 1))
    outside = tf.logical_or(index < 0, index >= size)
    return tf.where(outside[..., None], tf.constant(float("nan"), table.dtype), rows)
