"""Token embeddings, scaled, masked, and usable as the output projection."""

import keras
import tensorflow as tf

from keras_attention.layers.built_first import built_first
from keras_attention.layers.positions.encodings import rows_or_nan
from keras_attention.ops.basics import checks
from keras_attention.ops.basics.tables import with_dense_gradient
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class TokenEmbedding(Recorded, keras.layers.Layer):
    """Vectors of token ids, times sqrt(d_model), with the implicit mask of real tokens.

    The scaling stands inside the layer because a plain `x * sqrt(d)` would drop Keras' implicit mask without a word.
    An id outside the vocabulary raises in eager code and gives NaN in a graph, never another token's row.

    Args:
        vocab_size: number of ids.
        d_model: width.
        pad_id: id of padding, masked; None for no mask.
        scale: whether to multiply by sqrt(d_model).

    Call arguments:
        ids: [B, T], integers or floating numbers that hold integers (as `keras.Input` makes them by default).

    Returns:
        [B, T, d_model] in the compute dtype.

    Reference: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017,
    https://arxiv.org/abs/1608.05859 (for `logits`).
    """

    def __init__(self, vocab_size, d_model, *, pad_id=0, scale=True, **kwargs):
        # Autocast would round floating ids: 257 is not a bfloat16 number.
        super().__init__(autocast=False, **kwargs)
        self.vocab_size = checks.positive_int("vocab_size", vocab_size)
        self.d_model = checks.positive_int("d_model", d_model)
        self.pad_id = pad_id
        self.scale = bool(scale)

    def build(self, ids_shape=None):
        # With this deviation both uses start well: scaled inputs at 1, tied logits at about 1.
        deviation = self.d_model**-0.5 if self.scale else 0.02
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocab_size, self.d_model),
            initializer=keras.initializers.RandomNormal(stddev=deviation),
            autocast=False,
        )

    def call(self, ids):
        if not tf.as_dtype(ids.dtype).is_integer:
            ids = tf.cast(ids, tf.int32)
        table = with_dense_gradient(self.embeddings, self.compute_dtype)
        rows = rows_or_nan(table, ids, f"token ids (vocab_size={self.vocab_size})", "ids of the model's own tokenizer")
        return rows * self.d_model**0.5 if self.scale else rows

    @built_first
    def logits(self, x):
        """Scores of every token, float32 [..., vocab_size], from x [..., d_model] by the same table (tied weights)."""
        table = tf.cast(self.embeddings, x.dtype)
        # One product of two matrices: a batched one with a broadcast table runs at half the rate, and its gradient
        # holds a copy of the table for each row of the batch.
        *leading, width = checks.sizes(x)
        logits = tf.matmul(tf.reshape(x, [-1, width]), table, transpose_b=True)
        return tf.cast(tf.reshape(logits, [*leading, self.vocab_size]), tf.float32)

    def compute_mask(self, ids, previous_mask=None):
        return None if self.pad_id is None else keras.ops.not_equal(ids, self.pad_id)

    def compute_output_shape(self, ids_shape):
        return (*ids_shape, self.d_model)
