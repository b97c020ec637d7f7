"""The encoder-decoder Transformer, for translation and anything else that maps tokens to tokens."""

import keras
import tensorflow as tf

from keras_attention.layers import DecoderBlock, EncoderBlock
from keras_attention.layers.attention.head_count import num_heads_for
from keras_attention.layers.built_first import built_first
from keras_attention.layers.dropout import Dropout
from keras_attention.models import carried_scores
from keras_attention.models.configured import block_seed
from keras_attention.models.text.reading import empty_counts, own_part
from keras_attention.models.text.token_decoder import ADDED_POSITIONS, POSITIONS, TokenDecoder
from keras_attention.ops.basics import checks
from keras_attention.ops.dense import kv_cache
from keras_attention.text.special_ids import PAD_ID


@keras.saving.register_keras_serializable("keras_attention")
class Transformer(TokenDecoder):
    """Encoder and decoder stacks over token ids, with decoding states for generation and export.

    Id 0 is padding on both sides: masked in attention, never written into a fixed-size decoding state.

    Args:
        source_vocab_size, target_vocab_size: numbers of ids.
        d_model: width of the model.
        num_heads: attention heads in every layer; `recommended_num_heads(d_model, divisor=True)` by default.
        num_encoder_layers, num_decoder_layers: blocks in each stack.
        mlp_dim: width of the feed-forward layers; 4 * d_model by default.
        mechanism: how self-attention attends in both stacks. encoder_mechanism, decoder_mechanism: the same for one.
        num_kv_heads: heads of keys and values (grouped-query attention).
        dropout_rate: of embeddings, sub-layers and inside the feed-forward layers.
        attention_dropout_rate: of the attention weights.
        activation, norm, residual: of the blocks, see `EncoderBlock`. Pre-norm stacks end with a normalization.
        positions: added to the embeddings, "sinusoidal" or "learned" with a table of `max_length`; told to the
            self-attention of every block, "rotary", "alibi", "relative", or a position layer, see `MultiHeadAttention`;
            or "none", for mechanisms that know the order by themselves (retention).
        residual_attention_layers: how many of the last blocks of each stack add the attention scores of the block
            before to their own, in self- and cross-attention (He et al., "RealFormer", 2020,
            https://arxiv.org/abs/2012.11747). The documents advise three where long texts get worse. 0 by default.
        max_length: the longest sequence that generation makes, and that learned positions know.
        share_embeddings: one table for source, target and output; needs equal vocabularies.
        tie_output: the output projection is the target's embedding table.
        remat: compute every block again for its gradient (gradient checkpointing), see `EncoderBlock`.
        seed: of the dropout.

    Call arguments:
        inputs: {"source": integer [B, S], "target": integer [B, T]}; the target starts with the start token.

    Returns:
        Logits of the next token at each target position, float32 [B, T, target_vocab_size].

    Example:
        >>> model = Transformer(100, 100, d_model=64, num_heads=4, num_encoder_layers=2, num_decoder_layers=2)
        >>> model({"source": np.ones((2, 7), "int32"), "target": np.ones((2, 5), "int32")}).shape
        TensorShape([2, 5, 100])

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    block_lists = ("encoder_blocks", "decoder_blocks")

    def __init__(
        self,
        source_vocab_size,
        target_vocab_size,
        *,
        d_model=256,
        num_heads=None,
        num_encoder_layers=3,
        num_decoder_layers=3,
        mlp_dim=None,
        mechanism="auto",
        encoder_mechanism=None,
        decoder_mechanism=None,
        num_kv_heads=None,
        dropout_rate=0.1,
        attention_dropout_rate=0.0,
        activation="relu",
        norm="pre",
        residual="add",
        positions="sinusoidal",
        residual_attention_layers=0,
        max_length=256,
        share_embeddings=False,
        tie_output=True,
        remat=False,
        seed=None,
        **kwargs,
    ):
        # Autocast would round floating ids to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        if positions is None or isinstance(positions, str):
            checks.one_of("positions", positions, POSITIONS)
        for name, count in (("num_encoder_layers", num_encoder_layers), ("num_decoder_layers", num_decoder_layers)):
            checks.positive_int(name, count)
        self.residual_attention_layers = carried_scores.checked(
            residual_attention_layers,
            remat,
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
        )
        if share_embeddings and source_vocab_size != target_vocab_size:
            raise ValueError(
                f"share_embeddings needs one vocabulary for both sides. Got source_vocab_size={source_vocab_size}, "
                f"target_vocab_size={target_vocab_size}; give equal sizes or share_embeddings=False."
            )
        checks.positive_int("source_vocab_size", source_vocab_size)
        self.max_length = checks.positive_int("max_length", max_length)
        self.d_model = checks.positive_int("d_model", d_model)
        self.target_vocab_size = checks.positive_int("target_vocab_size", target_vocab_size)
        heads = num_heads_for(d_model, num_heads)
        options = {
            "num_kv_heads": num_kv_heads,
            "dropout_rate": dropout_rate,
            "attention_dropout_rate": attention_dropout_rate,
            "activation": activation,
            "norm": norm,
            "residual": residual,
            "positions": None if positions in ADDED_POSITIONS else positions,
            "remat": remat,
            "dtype": self.dtype_policy,
        }
        mlp_dim = 4 * d_model if mlp_dim is None else mlp_dim

        self.source_embedding = self._embedding(source_vocab_size, "source_embedding")
        self.target_embedding = (
            self.source_embedding if share_embeddings else self._embedding(target_vocab_size, "target_embedding")
        )
        self.source_positions = self._position_encoding(positions, "source_positions")
        self.target_positions = self._position_encoding(positions, "target_positions")
        self.embedding_dropout = Dropout(dropout_rate, seed=seed, dtype=self.dtype_policy, name="embedding_dropout")
        self.encoder_blocks = [
            EncoderBlock(
                d_model,
                heads,
                mlp_dim,
                mechanism=mechanism if encoder_mechanism is None else encoder_mechanism,
                seed=block_seed(seed, i),
                name=f"encoder_{i}",
                **options,
            )
            for i in range(num_encoder_layers)
        ]
        self.decoder_blocks = [
            DecoderBlock(
                d_model,
                heads,
                mlp_dim,
                mechanism=mechanism if decoder_mechanism is None else decoder_mechanism,
                seed=block_seed(seed, num_encoder_layers + i),
                name=f"decoder_{i}",
                **options,
            )
            for i in range(num_decoder_layers)
        ]
        for blocks in (self.encoder_blocks, self.decoder_blocks):
            carried_scores.check_mechanisms(blocks, residual_attention_layers)
        self.encoder_norm, self.decoder_norm = None, None
        if norm == "pre":
            self.encoder_norm = self._norm("encoder_norm")
            self.decoder_norm = self._norm("decoder_norm")
        self.output_dense = None
        if not tie_output:
            self.output_dense = keras.layers.Dense(target_vocab_size, dtype=self.dtype_policy, name="output_dense")

    def build(self, input_shape=None):
        stream = (None, None, self.d_model)
        self.source_embedding.build((None, None))
        if self.target_embedding is not self.source_embedding:
            self.target_embedding.build((None, None))
        parts = (
            self.source_positions,
            self.target_positions,
            *self.encoder_blocks,
            *self.decoder_blocks,
            self.encoder_norm,
            self.decoder_norm,
            self.output_dense,
        )
        for part in parts:
            if part is not None:
                part.build(stream)

    def call(self, inputs, training=False):
        source, target = inputs["source"], inputs["target"]
        memory = self.encode(source, training=training)
        x = self.embed_tokens(target, training=training)
        limits = {"padding_mask": tf.not_equal(target, PAD_ID), "memory_mask": tf.not_equal(source, PAD_ID)}
        return self._logits(self._through(self.decoder_blocks, x, memory, **limits, training=training))

    @built_first
    def encode(self, source, training=False):
        """The encoder's output, [B, S, d_model], of source ids [B, S]."""
        x = self._embedded(self.source_embedding, self.source_positions, source, training=training)
        x = self._through(self.encoder_blocks, x, padding_mask=tf.not_equal(source, PAD_ID), training=training)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    # --- decoding -------------------------------------------------------------------------------------------------

    def init_state(self, source, max_length=None):
        """Encodes the source and makes the state in which its translation is decoded.

        Args:
            source: integer [B, S].
            max_length: None for a state that grows; an int for a fixed number of target positions.

        Returns:
            A nested dict of plain tensors, batch first:
            "valid" int32 [B, P] (where keys are kept and grow) or "lengths" int32 [B]; "overflow" int32 [B], 1 in rows
            that ran past the end; "memory_valid" int32 [B, S]; "layers": {"0": {"self": what the mechanism keeps,
            "memory": {"key", "value"}}, ...}.
        """
        return self.init_state_from_memory(self.encode(source), tf.not_equal(source, PAD_ID), max_length)

    @built_first
    def init_state_from_memory(self, memory, memory_mask, max_length=None):
        """As `init_state`, from the encoder's output [B, S, d_model] and its boolean mask [B, S]."""
        batch = checks.sizes(memory)[0]
        layers = {}
        for i, block in enumerate(self.decoder_blocks):
            projected = block.project_memory(memory, memory_mask)
            own = block.init_state(batch, max_length)
            layers[str(i)] = {
                "self": own_part(own),
                "memory": {"key": projected["key"], "value": projected["value"]},
            }
        return {
            **empty_counts(batch, own),
            "memory_valid": tf.cast(memory_mask, tf.int32),
            "layers": layers,
        }

    # --- Keras' contract ------------------------------------------------------------------------------------------

    def compute_output_shape(self, input_shape):
        return (*input_shape["target"], self.target_vocab_size)

    def compute_output_spec(self, inputs, training=False):
        # Keras would give the shape the compute dtype of the policy; logits are float32 under every policy.
        shapes = {name: x.shape for name, x in inputs.items()}
        return keras.KerasTensor(self.compute_output_shape(shapes), dtype="float32")

    # --- hooks ----------------------------------------------------------------------------------------------------

    @property
    def decoding_blocks(self):
        return self.decoder_blocks

    def embed_tokens(self, ids, positions=None, training=False):
        return self._embedded(self.target_embedding, self.target_positions, ids, positions, training)

    def output_parts(self):
        return self.decoder_norm, self.target_embedding

    def own_state(self, layer):
        return layer["self"]

    def with_own_state(self, layer, own):
        return {**layer, "self": own}

    def reading_inputs(self, layer, state):
        return ({**layer["memory"], "valid": state["memory_valid"]},)

    def _reordered(self, layer, parents):
        return {**layer, "memory": kv_cache.reorder(layer["memory"], parents)}
