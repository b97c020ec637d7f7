"""What the models that predict tokens share: positions, logits, and states that tokens are read into."""

import keras
import tensorflow as tf

from keras_attention.layers import PositionalEncoding, SinusoidalEncoding, TokenEmbedding
from keras_attention.layers.attention import implicit_masks
from keras_attention.layers.built_first import built_first
from keras_attention.layers.positions import schemes
from keras_attention.models.carried_scores import CarriedScores
from keras_attention.models.configured import ConfiguredModel
from keras_attention.models.text.reading import Reading, own_part, token_positions
from keras_attention.ops.basics import checks
from keras_attention.ops.dense import kv_cache
from keras_attention.text.special_ids import PAD_ID

ADDED_POSITIONS = ("sinusoidal", "learned", "none")
POSITIONS = (*ADDED_POSITIONS, *schemes.names())


class TokenDecoder(ConfiguredModel):
    """Base of models of next tokens. Id 0 is padding: masked, counted in no position, written into no state.

    A subclass sets `residual_attention_layers`, `max_length` and `output_dense` (None: the output is tied to the
    embedding) and gives the hooks below.
    """

    @property
    def decoding_blocks(self):
        """The blocks whose self-attention keeps a state."""
        raise NotImplementedError

    def embed_tokens(self, ids, positions=None, training=False):
        """Ids [B, T] of the decoded side, embedded; positions int32 [B, T] by default those of real tokens from 0."""
        raise NotImplementedError

    def output_parts(self):
        """`(normalization after the blocks or None, the decoded side's TokenEmbedding)`."""
        raise NotImplementedError

    def own_state(self, layer):
        """The self-attention's part of a layer's state."""
        return layer

    def with_own_state(self, layer, own):
        """A layer's state with another part of the self-attention."""
        return own

    def reading_inputs(self, layer, state):
        """What a block takes beside the tokens while they are read into the state."""
        return ()

    # --- decoding -------------------------------------------------------------------------------------------------

    @built_first
    def prefill(self, tokens, state):
        """Reads ids [B, T] into the state.

        Returns:
            `(logits, state)`: float32 [B, T, vocabulary], and the new state. Padding tokens are skipped.
        """
        blocks, layers = self.decoding_blocks, {}
        old = [state["layers"][str(i)] for i in range(len(blocks))]
        own = [self.own_state(layer) for layer in old]
        reading = Reading(tokens, state, [(block.attention, part) for block, part in zip(blocks, own)])
        x, carried = self.embed_tokens(tokens, reading.positions), self._carried_scores(blocks)
        for i, block in enumerate(blocks):
            options = {"padding_mask": reading.valid, "state": reading.layer_states[i]}
            x, new = carried.through(i, block, x, *self.reading_inputs(old[i], state), **options)
            layers[str(i)] = self.with_own_state(old[i], own_part(new))
        return self._logits(x), {**state, **reading.counts, "layers": layers}

    def step(self, tokens, state):
        """Reads one id per row, [B]; returns `(logits [B, vocabulary], state)`.

        Rows given padding (finished ones) keep their state. A row past the end of a fixed-size state gets NaN logits
        and `state["overflow"]` 1; in eager code that raises instead.
        """
        logits, state = self.prefill(tokens[:, None], state)
        return logits[:, 0], state

    def reorder(self, state, parents):
        """The rows `parents` (int32 [B']) of a state, for beams; B' may differ from B."""
        layers = {}
        for i, block in enumerate(self.decoding_blocks):
            layer = state["layers"][str(i)]
            own = block.attention.reorder_state(self.own_state(layer), parents)
            layers[str(i)] = self.with_own_state(self._reordered(layer, parents), own)
        rest = {name: x for name, x in state.items() if name != "layers"}
        return {**kv_cache.reorder(rest, parents), "layers": layers}

    def _reordered(self, layer, parents):
        """The rows `parents` of what a layer's state holds beside the self-attention's."""
        return layer

    # --- parts ----------------------------------------------------------------------------------------------------

    def _embedding(self, vocab_size, name):
        return TokenEmbedding(vocab_size, self.d_model, pad_id=PAD_ID, dtype=self.dtype_policy, name=name)

    def _position_encoding(self, positions, name):
        """The layer that adds positions to the embeddings, or None where they are told to attention or left out."""
        if positions == "sinusoidal":
            return SinusoidalEncoding(dtype=self.dtype_policy, name=name)
        if positions != "learned":
            return None
        if self.max_length is None:
            raise ValueError("positions='learned' has a table of max_length rows: give max_length=.")
        return PositionalEncoding(self.max_length, self.d_model, dtype=self.dtype_policy, name=name)

    def _norm(self, name):
        return keras.layers.LayerNormalization(epsilon=1e-6, dtype=self.dtype_policy, name=name)

    def _embedded(self, embedding, encoding, ids, positions=None, training=False):
        x, limit = embedding(ids), None
        if encoding is not None:
            if positions is None:
                positions = token_positions(ids)
                limit = checks.sizes(positions)[1]
            x = encoding(x, positions=positions, limit=limit)
        return self.embedding_dropout(x, training=training)

    def _carried_scores(self, blocks):
        return CarriedScores(len(blocks), self.residual_attention_layers)

    def _through(self, blocks, x, *inputs, **options):
        """What a stack of blocks gives."""
        carried = self._carried_scores(blocks)
        for i, block in enumerate(blocks):
            x = carried.through(i, block, x, *inputs, **options)
        return x

    def _logits(self, x):
        norm, embedding = self.output_parts()
        x = x if norm is None else norm(x)
        logits = embedding.logits(x) if self.output_dense is None else tf.cast(self.output_dense(x), tf.float32)
        # Neither a tied table nor a cast hands on the mask of the tokens, which Keras' losses look for.
        return implicit_masks.put(logits, implicit_masks.get(x))
