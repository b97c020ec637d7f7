"""Encoder and decoder blocks of the Transformer."""

import functools

import keras
import tensorflow as tf

from keras_attention.layers.attention import implicit_masks
from keras_attention.layers.attention.multi_head_attention import MultiHeadAttention
from keras_attention.layers.built_first import built_first
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.gradient_checkpointing import checkpointed
from keras_attention.layers.positions import schemes
from keras_attention.layers.residual import Residual
from keras_attention.mechanisms import base as mechanisms
from keras_attention.ops.basics import checks
from keras_attention.recorded import Recorded


class _Block(Recorded, keras.layers.Layer):
    """What both blocks share: their options and how a sub-layer is wrapped."""

    def __init__(
        self,
        d_model,
        num_heads,
        mlp_dim,
        *,
        mechanism="auto",
        num_kv_heads=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        activation="relu",
        gated_mlp=False,
        positions=None,
        norm="pre",
        residual="add",
        layer_scale=None,
        drop_path_rate=0.0,
        epsilon=1e-6,
        remat=False,
        seed=None,
        **kwargs,
    ):
        # Without autocast, so that an additive bias reaches attention in float32.
        super().__init__(autocast=False, **kwargs)
        self.d_model = checks.positive_int("d_model", d_model)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.mlp_dim = checks.positive_int("mlp_dim", mlp_dim)
        # Not the object itself, which Keras would track as a part of this layer: attention has its own clone.
        self.mechanism = mechanisms.serialized(mechanism)
        self.num_kv_heads = num_kv_heads
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.attention_dropout_rate = checks.rate("attention_dropout_rate", attention_dropout_rate)
        self.activation = keras.activations.get(activation)
        self.gated_mlp = bool(gated_mlp)
        self.positions = schemes.serialized(positions)
        self.norm = norm
        self.residual = residual
        self.layer_scale = layer_scale
        self.drop_path_rate = drop_path_rate
        self.epsilon = epsilon
        self.remat = bool(remat)
        self.seed = seed
        self.supports_masking = True
        self.feed_forward = FeedForward(
            mlp_dim,
            activation=self.activation,
            gated=self.gated_mlp,
            dropout_rate=dropout_rate,
            seed=self._part_seed(0),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward_residual = self._bypass("feed_forward", 1)

    def _part_seed(self, part):
        # Parts with one seed would drop the same features.
        return None if self.seed is None else self.seed + part

    def _attention(self, name, mechanism, part, positions=None):
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            mechanism,
            num_kv_heads=self.num_kv_heads,
            dropout_rate=self.attention_dropout_rate,
            positions=positions,
            seed=self._part_seed(part),
            dtype=self.dtype_policy,
            name=name,
        )

    def _bypass(self, name, part):
        return Residual(
            norm=self.norm,
            residual=self.residual,
            dropout_rate=self.dropout_rate,
            layer_scale=self.layer_scale,
            drop_path_rate=self.drop_path_rate,
            epsilon=self.epsilon,
            seed=self._part_seed(part),
            dtype=self.dtype_policy,
            name=f"{name}_residual",
        )

    def build(self, x_shape):
        if x_shape[-1] != self.d_model:
            raise ValueError(f"{type(self).__name__}(d_model={self.d_model}) got an input of width {x_shape[-1]}.")
        for part in self._flatten_layers(include_self=False, recursive=False):
            self._build_part(part, x_shape)

    def _build_part(self, part, x_shape):
        part.build(x_shape)

    def _run(self, function, *inputs, training, **options):
        """`function(*inputs, **options)`, checkpointed where the block is to be and a gradient is to be expected."""
        function = functools.partial(function, training=training, **options)
        return checkpointed(self, function, *inputs) if self.remat and training else function(*inputs)

    def _carried(self, previous_scores, return_raw_scores, training):
        """The arguments about carried scores that were given, for attention."""
        carried = {} if previous_scores is None else {"previous_scores": previous_scores}
        if return_raw_scores:
            carried["return_raw_scores"] = True
        if carried and self.remat and training:
            raise ValueError(
                "A block with remat=True keeps nothing for its gradient but its input: it cannot carry scores "
                "(previous_scores=, return_raw_scores=). Make it with remat=False."
            )
        return carried

    def _feed(self, x, training):
        h = self.feed_forward(self.feed_forward_residual.before(x), training=training)
        return self.feed_forward_residual(x, h, training=training)

    def _masked(self, x, y):
        return implicit_masks.put(y, implicit_masks.get(x))

    def compute_output_shape(self, x_shape, *args, **kwargs):
        return x_shape

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


@keras.saving.register_keras_serializable("keras_attention")
class EncoderBlock(_Block):
    """Self-attention and a feed-forward layer, each with its way around.

    Args:
        d_model: width. num_heads: attention heads. mlp_dim: width of the feed-forward layer.
        mechanism: how to attend, see `MultiHeadAttention`.
        num_kv_heads: heads of keys and values, `num_heads` by default.
        dropout_rate: of the sub-layers' outputs and inside the feed-forward layer.
        attention_dropout_rate: of the attention weights.
        activation: of the feed-forward layer. gated_mlp: whether that layer is gated, see `FeedForward`.
        positions: of the self-attention, see `MultiHeadAttention`; None where they are added to the embeddings.
        norm: "pre" (steadier in deep stacks; put a last normalization after the stack) or "post" (the first paper's).
        residual: "add" or "gated"; layer_scale, drop_path_rate: see `Residual`.
        epsilon: of the layer normalizations.
        remat: compute the block again for its gradient in place of keeping what is in it (gradient checkpointing): less
            memory in training for the time of one more forward pass, and the same numbers.
        seed: of the dropout.

    Call arguments:
        x: [B, T, d_model].
        padding_mask: boolean [B, T], True = a real position; x's implicit mask is honoured as well.
        attention_mask: see `MultiHeadAttention`'s mask. bias: additive, [.., T, T].
        use_causal_mask: hide the future.
        state: a decoding state of `init_state`: x is new tokens only, which see the past and themselves.
        previous_scores, return_raw_scores: attention scores carried from block to block, see `MultiHeadAttention`.

    Returns:
        [B, T, d_model]; then the raw scores if asked for; then the new state where one was given.

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, d_model, num_heads, mlp_dim, *, mechanism="auto", **kwargs):
        super().__init__(d_model, num_heads, mlp_dim, mechanism=mechanism, **kwargs)
        self.attention = self._attention("attention", mechanism, 2, self.positions)
        self.attention_residual = self._bypass("attention", 3)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        bias=None,
        use_causal_mask=False,
        state=None,
        previous_scores=None,
        return_raw_scores=False,
        training=False,
    ):
        mask = implicit_masks.get(x)
        limits = {"mask": attention_mask, "padding_mask": padding_mask, "v_mask": mask, "q_mask": mask}
        carried = self._carried(previous_scores, return_raw_scores, training)
        y = tf.cast(x, self.compute_dtype)
        if state is None and not carried:
            y = self._run(self._forward, y, bias, limits=limits, use_causal_mask=use_causal_mask, training=training)
            return self._masked(x, y)
        if state is None:
            limits["use_causal_mask"] = use_causal_mask
        h = self.attention_residual.before(y)
        h, *rest = _listed(self.attention(h, **limits, **carried, bias=bias, state=state, training=training))
        y = self.attention_residual(y, h, training=training)
        y = self._masked(x, self._feed(y, training))
        return (y, *rest) if rest else y

    def _forward(self, y, bias, *, limits, use_causal_mask, training):
        h = self.attention_residual.before(y)
        h = self.attention(h, **limits, bias=bias, use_causal_mask=use_causal_mask, training=training)
        return self._feed(self.attention_residual(y, h, training=training), training)

    def init_state(self, batch_size, max_length=None):
        """An empty decoding state, see `MultiHeadAttention.init_state`."""
        return self.attention.init_state(batch_size, max_length)

    @built_first
    def attention_scores(self, x, bias=None):
        """The weights [B, H, T, T] with which this block attends to x [B, T, d_model], for pictures of them."""
        h = self.attention_residual.before(tf.cast(x, self.compute_dtype))
        return self.attention(h, bias=bias, return_attention_scores=True)[1]


@keras.saving.register_keras_serializable("keras_attention")
class DecoderBlock(_Block):
    """Causal self-attention, attention to an encoder's output, and a feed-forward layer.

    Args:
        As `EncoderBlock`; `mechanism` is the self-attention's.
        cross_mechanism: how to attend to the encoder's output.

    Call arguments:
        x: [B, T, d_model].
        memory: [B, S, M], the encoder's output, of any width; its implicit mask is honoured. Or the dict of
            `project_memory`.
        padding_mask: boolean [B, T]; memory_mask: boolean [B, S], for a tensor `memory`.
        state: a decoding state of `init_state`: x is new tokens only.
        previous_scores, return_raw_scores: attention scores carried from block to block, see `MultiHeadAttention`; as
            {"self": [B, H, T, T], "cross": [B, H, T, S]}, a way for each of the two attentions.

    Returns:
        [B, T, d_model]; then the raw scores if asked for; then the new state where one was given.

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, d_model, num_heads, mlp_dim, *, mechanism="auto", cross_mechanism="auto", **kwargs):
        super().__init__(d_model, num_heads, mlp_dim, mechanism=mechanism, **kwargs)
        self.cross_mechanism = mechanisms.serialized(cross_mechanism)
        self.attention = self._attention("attention", mechanism, 2, self._causal_positions())
        self.attention_residual = self._bypass("attention", 3)
        self.cross_attention = self._attention("cross_attention", cross_mechanism, 4)
        self.cross_attention_residual = self._bypass("cross_attention", 5)

    def build(self, x_shape, memory_shape=None):
        # A memory that is projected already, or none yet, leaves open what it was projected from: this layer's width.
        given = isinstance(memory_shape, list | tuple)
        self._memory_shape = tuple(memory_shape) if given else (None, None, self.d_model)
        super().build(x_shape)

    def get_build_config(self):
        # Of a memory as wide as the layer files say nothing, as always: version 0.1 reads them too.
        config = super().get_build_config()
        if config and self._memory_shape[-1] == self.d_model and "shapes_dict" in config:
            return {"input_shape": config["shapes_dict"]["x_shape"]}
        return config

    def _build_part(self, part, x_shape):
        if part is self.cross_attention:
            part.build(self._memory_shape, self._memory_shape, x_shape)
        else:
            part.build(x_shape)

    def _causal_positions(self):
        # A name alone leaves open which directions a table of distances is for.
        given, head_dim = self.positions, self.d_model // self.num_heads
        if not isinstance(given, str):
            return given
        return schemes.get(given, self.num_heads, head_dim, self.dtype_policy, causal=True)

    def call(
        self,
        x,
        memory,
        padding_mask=None,
        memory_mask=None,
        state=None,
        previous_scores=None,
        return_raw_scores=False,
        training=False,
    ):
        mask = implicit_masks.get(x)
        limits = {"padding_mask": padding_mask, "v_mask": mask, "q_mask": mask}
        # Said in so many words: a cast or a checkpoint on the way to the cross-attention takes an implicit mask off.
        memory_limits = {"q_mask": mask}
        if not isinstance(memory, dict):
            memory_limits |= {"padding_mask": memory_mask, "k_mask": implicit_masks.get(memory)}
        y = tf.cast(x, self.compute_dtype)
        options = {"limits": limits, "memory_limits": memory_limits}
        previous = {} if previous_scores is None else previous_scores
        if not isinstance(previous, dict) or not set(previous) <= {"self", "cross"}:
            raise ValueError(
                'previous_scores of a DecoderBlock must be a dict with the scores of "self" and "cross". Got '
                f"{sorted(previous) if isinstance(previous, dict) else type(previous).__name__}."
            )
        carried = {part: self._carried(previous.get(part), return_raw_scores, training) for part in ("self", "cross")}
        if state is None and not carried["self"] and not carried["cross"]:
            return self._masked(x, self._run(self._only_output, y, memory, **options, training=training))
        y, raw, state = self._forward(y, memory, **options, state=state, carried=carried, training=training)
        rest = ([raw] if return_raw_scores else []) + ([] if state is None else [state])
        return (self._masked(x, y), *rest) if rest else self._masked(x, y)

    def _only_output(self, y, memory, **options):
        return self._forward(y, memory, **options)[0]

    def _forward(self, y, memory, *, limits, memory_limits, training, state=None, carried=None):
        carried = carried or {"self": {}, "cross": {}}
        h = self.attention_residual.before(y)
        reading = {"use_causal_mask": True} if state is None else {"state": state}
        h, *rest = _listed(self.attention(h, **limits, **reading, **carried["self"], training=training))
        state = None if state is None else rest.pop()
        y = self.attention_residual(y, h, training=training)
        h = self.cross_attention_residual.before(y)
        inputs = {"memory": memory, "q": h} if isinstance(memory, dict) else {"v": memory, "k": memory, "q": h}
        h, *crossed = _listed(self.cross_attention(**inputs, **memory_limits, **carried["cross"], training=training))
        y = self._feed(self.cross_attention_residual(y, h, training=training), training)
        return y, dict(zip(("self", "cross"), (*rest, *crossed))), state

    def init_state(self, batch_size, max_length=None):
        """An empty decoding state, see `MultiHeadAttention.init_state`."""
        return self.attention.init_state(batch_size, max_length)

    def project_memory(self, memory, memory_mask=None):
        """The cross-attention's keys and values, computed once for a whole decoding; memory's implicit mask counts."""
        if not self.built:
            self.build((None, None, self.d_model), tuple(memory.shape))
        return self.cross_attention.project_memory(memory, padding_mask=memory_mask)


def _listed(result):
    return list(result) if isinstance(result, tuple) else [result]
