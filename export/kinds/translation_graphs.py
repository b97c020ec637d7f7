"""The three graphs of an encoder-decoder, as `optimum`'s clients know them."""

import tensorflow as tf

from keras_attention import mechanisms
from keras_attention.errors import UsageError
from keras_attention.export.onnx_folder.graph import Port
from keras_attention.ops.basics import checks
from keras_attention.text.special_ids import PAD_ID

_B, _S, _T = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
_P = "past_decoder_sequence_length"
_TOTAL = f"{_P} + {_T}"


class TransformerGraphs:
    """Functions and ports of encoder_model, decoder_model and decoder_with_past_model.

    The decoder's state grows by concatenation. Keys and values have the query's number of heads, which is all that
    clients can be told: grouped ones are repeated on the way out, and one of each group is taken on the way in.

    Args:
        model: `keras_attention.models.Transformer`, in float32.

    Raises:
        UsageError: a mechanism that the layout or ONNX cannot express.
    """

    def __init__(self, model):
        self.model = model
        self._check_mechanisms()
        attention = model.decoder_blocks[0].attention
        self.heads, self.head_dim = attention.num_heads, attention.head_dim
        self.groups = attention.num_heads // attention.num_kv_heads

    def graphs(self):
        """dict of file name -> (function, inputs, outputs) for `onnx_graph.write`."""
        mask = Port("encoder_attention_mask", (_B, _S), tf.int64)
        ids = Port("input_ids", (_B, _T), tf.int64)
        memory = (_B, _S, self.model.d_model)
        vocabulary = self.model.target_vocab_size
        own, of_memory = (_B, self.heads, _TOTAL, self.head_dim), (_B, self.heads, _S, self.head_dim)
        past = (_B, self.heads, _P, self.head_dim)
        return {
            "encoder_model.onnx": (
                self._encoder,
                [Port("input_ids", (_B, _S), tf.int64), Port("attention_mask", (_B, _S), tf.int64)],
                [Port("last_hidden_state", memory)],
            ),
            "decoder_model.onnx": (
                self._decoder,
                [mask, ids, Port("encoder_hidden_states", memory, tf.float32)],
                [Port("logits", (_B, _T, vocabulary)), *self._state("present", decoder=own, encoder=of_memory)],
            ),
            "decoder_with_past_model.onnx": (
                self._decoder_with_past,
                [mask, ids, *self._state("past_key_values", tf.float32, decoder=past, encoder=of_memory)],
                [Port("logits", (_B, "1", vocabulary)), *self._state("present", decoder=own)],
            ),
        }

    def _state(self, prefix, dtype=None, **kinds):
        """Ports in the order by which clients tell them: layers by number, and in each the decoder's first."""
        return [
            Port(f"{prefix}.{layer}.{kind}.{part}", axes, dtype)
            for layer in range(len(self.model.decoder_blocks))
            for kind, axes in kinds.items()
            for part in ("key", "value")
        ]

    def _encoder(self, input_ids, attention_mask):
        return [self.model.encode(tf.where(attention_mask != 0, tf.cast(input_ids, tf.int32), PAD_ID))]

    def _decoder(self, encoder_attention_mask, input_ids, encoder_hidden_states):
        state = self.model.init_state_from_memory(encoder_hidden_states, encoder_attention_mask != 0, None)
        logits, state = self.model.prefill(tf.cast(input_ids, tf.int32), state)
        return [logits, *self._outward(state, ("self", "memory"))]

    def _decoder_with_past(self, encoder_attention_mask, input_ids, *past):
        batch, _, length, _ = checks.sizes(past[0])
        layers = {}
        for layer in range(len(self.model.decoder_blocks)):
            tensors = [x[:, :: self.groups] for x in past[4 * layer : 4 * layer + 4]]
            layers[str(layer)] = {
                "self": {"key": tensors[0], "value": tensors[1]},
                "memory": {"key": tensors[2], "value": tensors[3]},
            }
        state = {
            # What a client has fed is real: it knows no padding on the target's side.
            "valid": tf.ones([batch, length], tf.int32),
            "overflow": tf.zeros([batch], tf.int32),
            "memory_valid": tf.cast(encoder_attention_mask != 0, tf.int32),
            "layers": layers,
        }
        logits, state = self.model.prefill(tf.cast(input_ids, tf.int32), state)
        return [logits, *self._outward(state, ("self",))]

    def _outward(self, state, kinds):
        tensors = []
        for layer in range(len(self.model.decoder_blocks)):
            for kind in kinds:
                kept = state["layers"][str(layer)][kind]
                tensors += [kept[part] for part in ("key", "value")]
        return tensors if self.groups == 1 else [tf.repeat(x, self.groups, axis=1) for x in tensors]

    def _check_mechanisms(self):
        encoders = [block.attention.mechanism for block in self.model.encoder_blocks]
        decoders = [block.attention.mechanism for block in self.model.decoder_blocks]
        crossings = [block.cross_attention.mechanism for block in self.model.decoder_blocks]
        for mechanism in (*encoders, *decoders, *crossings):
            if isinstance(mechanism.supports.onnx, str):
                raise UsageError(
                    f"mechanism={mechanism.registered_name!r} cannot be exported to ONNX: {mechanism.supports.onnx}. "
                    "Export a SavedModel, or train with another mechanism."
                )
        for block in self.model.decoder_blocks:
            mechanism = block.attention.mechanism
            if _state_names(block) != {"key", "value", "valid"}:
                known = [name for name in mechanisms.names() if mechanisms.class_of(name).supports.state == "kv"]
                raise UsageError(
                    f"The decoding state of mechanism={mechanism.registered_name!r} does not fit into an ONNX "
                    "folder: its clients know growing keys and values only. Export a SavedModel, or train "
                    f"with one of {', '.join(known)} in the decoder (with a full cache)."
                )


def _state_names(block):
    try:
        return set(block.init_state(1, None))
    except ValueError:  # a state that cannot grow
        return set()
