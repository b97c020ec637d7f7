"""The causal Transformer that turns a text into one vector: the text tower of CLIP."""

import keras
import tensorflow as tf

from keras_attention.layers import EncoderBlock, PositionalEncoding, TokenEmbedding
from keras_attention.layers.attention.head_count import num_heads_for
from keras_attention.layers.built_first import built_first
from keras_attention.layers.dropout import Dropout
from keras_attention.models.configured import ConfiguredModel, block_seed
from keras_attention.ops.basics import checks
from keras_attention.text.special_ids import EOS_ID, PAD_ID


@keras.saving.register_keras_serializable("keras_attention")
class TextEncoder(ConfiguredModel):
    """Token ids to one vector per text: causal blocks, and the features of the end of sentence, which has seen all.

    What stands after the first end of sentence has no influence, so that texts may be padded on the right with anything
    (OpenAI's tokenizer pads with the end of sentence itself). Padding on the left needs `pad_id` or a mask; positions
    count real tokens. A text without an end of sentence is read up to its last real token.

    Args:
        vocab_size: number of ids.
        d_model: width. num_heads: attention heads; `recommended_num_heads(d_model, divisor=True)` by default.
        num_layers: blocks. mlp_dim: width of their feed-forward layers; 4 * d_model by default.
        max_length: the longest text in tokens; a longer one is refused, or NaN where only the graph knows its length.
        eos_id: id of the end of sentence; None where that is the largest id of each text, as in the first CLIP.
        pad_id: id of padding; None where 0 is a token like others, as with OpenAI's tokenizer.
        mechanism: how to attend; one that supports the causal flag.
        dropout_rate: of embeddings and sub-layers. attention_dropout_rate: of the attention weights.
        activation: of the feed-forward layers, a name or a function; `keras_attention.ops.activations.quick_gelu` for
            OpenAI's weights.
        epsilon: of the layer normalizations.
        remat: compute every block again for its gradient (gradient checkpointing), see `EncoderBlock`.
        seed: of the dropout.

    Call arguments:
        text: integer [B, T].
        text_mask: boolean or integer [B, T], true = a real token; `text != pad_id` by default.

    Returns:
        [B, d_model] in the compute dtype, after the last normalization.

    Example:
        >>> TextEncoder(100, d_model=64, num_layers=2)(np.array([[2, 17, 45, 3], [2, 9, 3, 0]])).shape
        TensorShape([2, 64])

    Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
    https://arxiv.org/abs/2103.00020
    """

    def __init__(
        self,
        vocab_size,
        *,
        d_model=512,
        num_heads=None,
        num_layers=12,
        mlp_dim=None,
        max_length=77,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        mechanism="auto",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        activation="gelu",
        epsilon=1e-5,
        remat=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = checks.positive_int("vocab_size", vocab_size)
        self.d_model = checks.positive_int("d_model", d_model)
        self.max_length = checks.positive_int("max_length", max_length)
        self.eos_id = None if eos_id is None else _token("eos_id", eos_id, vocab_size)
        self.pad_id = None if pad_id is None else _token("pad_id", pad_id, vocab_size)
        checks.positive_int("num_layers", num_layers)
        self.embedding = TokenEmbedding(
            vocab_size, d_model, pad_id=None, scale=False, dtype=self.dtype_policy, name="embedding"
        )
        self.positions = PositionalEncoding(max_length, d_model, dtype=self.dtype_policy, name="positions")
        self.dropout = Dropout(dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout")
        self.blocks = [
            EncoderBlock(
                d_model,
                num_heads_for(d_model, num_heads),
                4 * d_model if mlp_dim is None else mlp_dim,
                mechanism=mechanism,
                dropout_rate=dropout_rate,
                attention_dropout_rate=attention_dropout_rate,
                activation=activation,
                epsilon=epsilon,
                remat=remat,
                seed=block_seed(seed, i),
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i in range(num_layers)
        ]
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, input_shape=None):
        self.embedding.build((None, None))
        for part in (self.positions, *self.blocks, self.norm):
            part.build((None, None, self.d_model))

    def call(self, text, text_mask=None, training=False):
        x = self.features(text, text_mask, training=training)
        # A product with ones and zeros picks one row of each text, in every runtime.
        chosen = tf.one_hot(self._ends(text, self._valid(text, text_mask)), checks.sizes(x)[1], dtype=x.dtype)
        return tf.squeeze(tf.matmul(chosen[:, None], x), 1)

    @built_first
    def features(self, text, text_mask=None, training=False):
        """The tokens after the last normalization, [B, T, d_model]."""
        return self.norm(self.hidden_states(text, text_mask, training=training)[-1])

    @built_first
    def hidden_states(self, text, text_mask=None, training=False):
        """The embedded tokens, and the output of each block: a list of num_layers + 1 tensors [B, T, d_model]."""
        valid, positions = self._valid(text, text_mask), None
        x = self.embedding(text)
        if valid is not None:
            positions = tf.maximum(tf.cumsum(tf.cast(valid, tf.int32), axis=1) - 1, 0)
        x = self.positions(x, positions=positions, limit=checks.sizes(x)[1])
        states = [self.dropout(x, training=training)]
        for block in self.blocks:
            states.append(block(states[-1], padding_mask=valid, use_causal_mask=True, training=training))
        return states

    def _valid(self, text, text_mask):
        """Boolean [B, T] of real tokens, or None where all are."""
        if text_mask is not None:
            return tf.not_equal(tf.cast(text_mask, tf.int32), 0)
        return None if self.pad_id is None else tf.not_equal(tf.cast(text, tf.int32), self.pad_id)

    def _ends(self, text, valid):
        """int32 [B]: where each text is read off."""
        length = checks.sizes(text)[1]
        text = tf.cast(text, tf.int32)
        end = self.eos_id
        if end is None:
            real = text if valid is None else tf.where(valid, text, -1)
            end = tf.reduce_max(real, axis=1, keepdims=True)
        places, is_end = tf.range(length), tf.equal(text, end)
        last = length - 1
        if valid is not None:
            is_end = tf.logical_and(is_end, valid)
            last = tf.reduce_max(tf.where(valid, places, 0), axis=1)
        first_end = tf.reduce_min(tf.where(is_end, places, length), axis=1)
        return tf.where(first_end < length, first_end, last)

    def compute_output_shape(self, text_shape, *args, **kwargs):
        return (text_shape[0], self.d_model)

    def compute_output_spec(self, text, *args, **kwargs):
        return keras.KerasTensor(self.compute_output_shape(text.shape), dtype=self.compute_dtype)


def _token(name, value, vocab_size):
    value = checks.nonnegative_int(name, value)
    if value >= vocab_size:
        raise ValueError(f"{name} must lie below vocab_size={vocab_size}. Got {name}={value}.")
    return value
