"""The decoder-only language model: logits of the next token from all tokens before it."""

import keras
import tensorflow as tf

from keras_attention.layers import EncoderBlock
from keras_attention.layers.attention.head_count import num_heads_for
from keras_attention.layers.dropout import Dropout
from keras_attention.layers.positions import schemes
from keras_attention.models import carried_scores
from keras_attention.models.configured import block_seed
from keras_attention.models.text.reading import checked_batch, empty_counts, own_part
from keras_attention.models.text.token_decoder import ADDED_POSITIONS, POSITIONS, TokenDecoder
from keras_attention.ops.basics import checks
from keras_attention.text.special_ids import PAD_ID


@keras.saving.register_keras_serializable("keras_attention")
class DecoderLM(TokenDecoder):
    """A stack of causal pre-norm blocks over token ids, with decoding states for generation and export.

    Id 0 is padding, on either side: masked in attention, counted in no position, never written into a fixed-size state.

    Args:
        vocab_size: number of ids, padding included.
        d_model: width of the model.
        num_heads: attention heads in every layer; `recommended_num_heads(d_model, divisor=True)` by default.
        num_layers: blocks.
        mlp_dim: width of the feed-forward layers; 4 * d_model by default.
        mechanism: how to attend; one that can be causal. With "blockwise", "local", "linear" or "retention" memory
            grows with the length and not with its square.
        num_kv_heads: heads of keys and values (grouped-query attention).
        dropout_rate: of embeddings, sub-layers and inside the feed-forward layers.
        attention_dropout_rate: of the attention weights.
        activation: of the feed-forward layers.
        gated_mlp: gated feed-forward layers, see `FeedForward`.
        positions: added to the embeddings, "sinusoidal" or "learned" with a table of `max_length`; told to attention,
            "rotary", "alibi", "relative", or a position layer, see `MultiHeadAttention`; or "none", for mechanisms that
            know the order by themselves (retention).
        residual_attention_layers: how many of the last blocks add the attention scores of the block before to their
            own, see `Transformer`. 0 by default.
        max_length: the longest sequence of learned positions, and the size of exported decoding states; None for no
            limit, which an export then has to be given.
        tie_output: the output projection is the embedding table.
        remat: compute every block again for its gradient (gradient checkpointing), see `EncoderBlock`.
        seed: of the dropout.

    Call arguments:
        ids: integer [B, T].

    Returns:
        Logits of the token after each position, float32 [B, T, vocab_size].

    Raises:
        ValueError: learned positions without `max_length`; what a mechanism cannot do.

    Example:
        >>> model = DecoderLM(258, d_model=64, num_heads=4, num_layers=2)
        >>> model(np.ones((2, 7), "int32")).shape
        TensorShape([2, 7, 258])

    Reference: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (the pre-norm decoder stack);
    Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        vocab_size,
        *,
        d_model=256,
        num_heads=None,
        num_layers=4,
        mlp_dim=None,
        mechanism="auto",
        num_kv_heads=None,
        dropout_rate=0.1,
        attention_dropout_rate=0.0,
        activation="gelu",
        gated_mlp=False,
        positions="sinusoidal",
        residual_attention_layers=0,
        max_length=None,
        tie_output=True,
        remat=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if isinstance(positions, str):
            checks.one_of("positions", positions, POSITIONS)
        checks.positive_int("num_layers", num_layers)
        if max_length is not None:
            checks.positive_int("max_length", max_length)
        self.residual_attention_layers = carried_scores.checked(residual_attention_layers, remat, num_layers=num_layers)
        self.vocab_size = checks.positive_int("vocab_size", vocab_size)
        self.d_model = checks.positive_int("d_model", d_model)
        self.max_length = max_length
        self.embedding = self._embedding(vocab_size, "embedding")
        self.position_encoding = self._position_encoding(positions, "position_encoding")
        self.embedding_dropout = Dropout(dropout_rate, seed=seed, dtype=self.dtype_policy, name="embedding_dropout")
        heads = num_heads_for(d_model, num_heads)
        told = None
        if positions not in ADDED_POSITIONS:
            told = schemes.get(positions, heads, d_model // heads, self.dtype_policy, causal=True)
        self.blocks = [
            EncoderBlock(
                d_model,
                heads,
                4 * d_model if mlp_dim is None else mlp_dim,
                mechanism=mechanism,
                num_kv_heads=num_kv_heads,
                dropout_rate=dropout_rate,
                attention_dropout_rate=attention_dropout_rate,
                activation=activation,
                gated_mlp=gated_mlp,
                positions=told,
                remat=remat,
                seed=block_seed(seed, i),
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i in range(num_layers)
        ]
        carried_scores.check_mechanisms(self.blocks, residual_attention_layers)
        attention = self.blocks[0].attention
        if not attention.mechanism.supports.causal:
            attention.mechanism.refuse("a language model, which may not see the future", "mechanism='softmax'")
        self.final_norm = self._norm("final_norm")
        self.output_dense = None
        if not tie_output:
            self.output_dense = keras.layers.Dense(vocab_size, dtype=self.dtype_policy, name="output_dense")

    def build(self, input_shape=None):
        stream = (None, None, self.d_model)
        self.embedding.build((None, None))
        for part in (self.position_encoding, *self.blocks, self.final_norm, self.output_dense):
            if part is not None:
                part.build(stream)

    def call(self, ids, training=False):
        x = self.embed_tokens(ids, training=training)
        valid = tf.not_equal(ids, PAD_ID)
        return self._logits(self._through(self.blocks, x, padding_mask=valid, use_causal_mask=True, training=training))

    # --- decoding -------------------------------------------------------------------------------------------------

    def init_state(self, batch_size, max_length=None):
        """The state of `batch_size` (an int or a scalar tensor) empty sequences.

        Args:
            max_length: None for a state that grows; an int for a fixed number of positions.

        Returns:
            A nested dict of plain tensors, batch first: "valid" int32 [B, P] (where keys are kept and grow) or
            "lengths" int32 [B]; "overflow" int32 [B], 1 in rows that ran past the end; "layers": {"0": what the
            mechanism keeps, ...}.
        """
        batch = checked_batch(batch_size)
        own = [block.init_state(batch, max_length) for block in self.blocks]
        return {
            **empty_counts(batch, own[0]),
            "layers": {str(i): own_part(state) for i, state in enumerate(own)},
        }

    @property
    def call_signature(self):
        """What `call` takes, for exports."""
        return tf.TensorSpec([None, None], tf.int32, "input_ids")

    # --- Keras' contract ------------------------------------------------------------------------------------------

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.vocab_size)

    def compute_output_spec(self, ids, training=False):
        # Keras would give the shape the compute dtype of the policy; logits are float32 under every policy.
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype="float32")

    # --- hooks ----------------------------------------------------------------------------------------------------

    @property
    def decoding_blocks(self):
        return self.blocks

    def embed_tokens(self, ids, positions=None, training=False):
        return self._embedded(self.embedding, self.position_encoding, ids, positions, training)

    def output_parts(self):
        return self.final_norm, self.embedding
