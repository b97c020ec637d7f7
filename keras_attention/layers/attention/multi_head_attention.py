"""The attention layer: projections, heads, masks and state around one mechanism."""

import math

import keras
import tensorflow as tf

from keras_attention.layers.attention import (
    attention_positions,
    call_arguments,
    implicit_masks,
    keras_weights,
    projections,
)
from keras_attention.layers.attention.decoding import Decoding
from keras_attention.layers.attention.heads import Heads
from keras_attention.layers.positions import schemes
from keras_attention.mechanisms import base as mechanisms
from keras_attention.ops.basics import checks, masks
from keras_attention.recorded import Recorded


@keras.saving.register_keras_serializable("keras_attention")
class MultiHeadAttention(Recorded, Decoding, keras.layers.Layer):
    """Multi-head attention, called like the documents' code: `mha(v, k, q, mask)`; `mha(x)` attends to itself.

    The inputs are projected to `num_heads` heads, `mechanism` attends, and a last projection joins the heads. Two
    tensors are an error, because Keras users write (query, value) and the documents (value, key, query): give one or
    three, or use keywords.

    Masks. `mask` limits pairs of query and key: boolean, True = may attend, of shape [B, H|1, T, S] or [B, T, S];
    floating is read in the documents' sense, 1 = blocked, with a warning, and other values are refused where they are
    known (inside a graph every number but 0 blocks); integers are refused. Rank 2, (T, S), is taken only where T cannot
    be mistaken for B. `padding_mask` [B, S] marks real keys. `use_causal_mask` hides the
    future, aligned bottom-right. Keras' implicit masks (Embedding with `mask_zero=True`) are honoured on v, k and q,
    are never taken off the inputs, and q's goes on with the output. A query that may attend to nothing gets zeros
    before the output projection, with zero gradients. Attention cannot take out a NaN that stands in a masked
    position: 0 * NaN is NaN, so padded positions must hold finite numbers.

    Args:
        d_model: width of the output, and of all heads together unless `head_dim` is given.
        num_heads: number of query heads H.
        mechanism: a name (`keras_attention.mechanisms.names()`), a `Mechanism`, or its config; `"auto"` is
            exact softmax attention, dense or by tiles as the lengths have it (`AutoAttention`, `chosen_mechanism`).
        num_kv_heads: key and value heads, shared by groups of query heads (grouped-query attention); H by default.
        head_dim: size D of a head; d_model / num_heads by default.
        dropout_rate: share of attention weights dropped in training.
        positions: where tokens stand, told to attention itself: None, "rotary", "alibi", "relative", a position layer
            (`RotaryEmbedding`, `ALiBi`, `RelativePositionBias`, `RelativePositionBias2D`) or its config. For
            self-attention. Decoding states go on counting. Rotary positions count real tokens, and so do the biases
            with bigbird, block_sparse and random; with other mechanisms they take a sequence as it is given, so that
            padding between real tokens adds to their distance (none on either side).
        temperature: the scores are divided by it; above 1 flattens the weights.
        use_bias: whether the four projections have a bias.
        kernel_initializer: initialiser of the four kernels, each with its own fan; Glorot uniform, as large numbers
            would saturate the softmax from the start.
        bias_initializer: initialiser of their biases.
        seed: seed of the dropout.
        **kwargs: `name`, `dtype` (a policy reaches all parts) and so on.

    Call arguments:
        v: [B, S, E], or the only input. k: [B, S, E]. q: [B, T, E].
        mask, padding_mask, use_causal_mask: see above; with `state`, `padding_mask` is about the new tokens, [B, T].
        global_mask: boolean [B, T], True = a token that sees and is seen by all, for mechanisms with such tokens.
        bias: floating, [H, T, S], [B|1, H|1, T, S] or [T, S], added to the scores; -inf = blocked. Kept in float32
            (float64 under that policy).
        return_attention_scores: also return the weights [B, H, T, S].
        previous_scores: floating [B, H, T, S], the raw scores of the layer before, which are added to this layer's
            (residual attention: He et al., "RealFormer", 2020, https://arxiv.org/abs/2012.11747).
        return_raw_scores: also return, in at least float32, the scores that the next layer would add: scaled products
            and what came as `previous_scores`, before this layer's bias, position bias and masks.
        state: a decoding state of `init_state`: the new tokens are read into it and attend causally to all of it.
        memory: keys and values that `project_memory` made, in place of v and k.
        v_mask, k_mask, q_mask: boolean [B, S], [B, S], [B, T], filled from implicit masks when not given. The first two
            are about keys alone, in self-attention as well; floating ones are read in the documents' sense.
        training: Python bool.

    Returns:
        [B, T, d_model] in the compute dtype; then the weights and the raw scores if asked for; then the new state if
        one was given.

    Raises:
        ValueError: for two inputs, sizes that do not fit, or what the mechanism does not support.

    Example:
        >>> mha = MultiHeadAttention(d_model=64, num_heads=4)
        >>> mha(keras.random.normal((2, 10, 64)), use_causal_mask=True).shape
        TensorShape([2, 10, 64])

    Reference: Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        d_model,
        num_heads,
        mechanism="auto",
        *,
        num_kv_heads=None,
        head_dim=None,
        positions=None,
        dropout_rate=0.0,
        temperature=1.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        # Without autocast a bias of -1e9 stays a number under float16; inputs are cast by hand in `call`.
        super().__init__(autocast=False, **kwargs)
        self.d_model = checks.positive_int("d_model", d_model)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.num_kv_heads = checks.positive_int("num_kv_heads", num_heads if num_kv_heads is None else num_kv_heads)
        checks.divisible("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        if head_dim is None:
            checks.divisible("d_model", self.d_model, "num_heads", self.num_heads)
            head_dim = self.d_model // self.num_heads
        self.head_dim = checks.positive_int("head_dim", head_dim)
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.temperature = checks.positive_number("temperature", temperature)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        self.mechanism = mechanisms.clone(mechanisms.get(mechanism), self.dtype_policy)
        self.positions = schemes.get(positions, self.num_heads, self.head_dim, self.dtype_policy)
        self._record(mechanism="auto" if mechanism == "auto" else self.mechanism, positions=self.positions)
        call_arguments.check_options(self.mechanism, self.dropout_rate, self.temperature)
        attention_positions.check(self.positions, self.mechanism)
        self._seed_generator = keras.random.SeedGenerator(seed, name="dropout_seed") if self.dropout_rate else None

    # --- building -------------------------------------------------------------------------------------------------

    def build(self, v_shape, k_shape=None, q_shape=None):
        k_shape = k_shape or v_shape
        q_shape = q_shape or v_shape
        for name, shape in (("v", v_shape), ("k", k_shape), ("q", q_shape)):
            call_arguments.check_input(name, shape)
        self.mechanism.build_projections(self, q_shape[-1], k_shape[-1], v_shape[-1])
        self.add_projection("output", self.num_heads * self.head_dim, units=self.d_model)
        self.mechanism.build_heads(self)
        self.mechanism.built = True
        if self.positions is not None:
            self.positions.built = True

    def add_projection(self, name, width, num_heads=None, units=None):
        """Creates the projection `<name>_projection` from `width` features to `num_heads` heads (or `units`)."""
        layer = keras.layers.Dense(
            num_heads * self.head_dim if units is None else units,
            use_bias=self.use_bias,
            # Each kernel its own initialiser: a shared one without a seed would repeat its numbers.
            kernel_initializer=_fresh(self.kernel_initializer),
            bias_initializer=_fresh(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        setattr(self, f"{name}_projection", layer)
        layer.build((None, None, width))

    # --- calling --------------------------------------------------------------------------------------------------

    def __call__(self, v=None, k=None, q=None, mask=None, **kwargs):
        v, k, q = call_arguments.inputs(v, k, q, kwargs.get("memory"))
        if kwargs.get("memory") is not None:
            # Asked here, as Keras fills v_mask with the implicit mask of what are queries now.
            call_arguments.check_no_key_masks(**kwargs)
        if mask is not None:
            # `call` has no argument named `mask`: Keras would fill it with the implicit (B, S) mask of a lone input.
            kwargs["attention_mask"] = mask
        q_mask = kwargs.get("q_mask")
        if isinstance(q_mask, keras.KerasTensor):
            # `call` reads it by the same rule, and says so.
            q_mask = q_mask if q_mask.dtype == "bool" else keras.ops.equal(q_mask, 0)
        elif q_mask is not None:
            q_mask = kwargs["q_mask"] = masks.as_boolean(q_mask, "q_mask")
        result = super().__call__(v, k, q, **kwargs)
        output = result[0] if isinstance(result, tuple) else result
        implicit_masks.put(output, implicit_masks.get(v if q is None else q) if q_mask is None else q_mask)
        return result

    def call(
        self,
        v,
        k=None,
        q=None,
        attention_mask=None,
        *,
        bias=None,
        padding_mask=None,
        use_causal_mask=False,
        global_mask=None,
        return_attention_scores=False,
        previous_scores=None,
        return_raw_scores=False,
        state=None,
        memory=None,
        v_mask=None,
        k_mask=None,
        q_mask=None,
        training=False,
    ):
        v, k, q = call_arguments.inputs(v, k, q, memory)
        v_mask, k_mask, q_mask = implicit_masks.of_inputs(v, k, q, v_mask, k_mask, q_mask)
        cross = q is not None or memory is not None
        call_arguments.check_supported(
            self.mechanism,
            cross,
            state,
            memory,
            free_mask=(attention_mask, "a free mask (mask=)"),
            bias=(bias, "an additive bias (bias=)"),
            padding_mask=(padding_mask, "a padding mask"),
            causal=(use_causal_mask, "use_causal_mask=True"),
            scores=(return_attention_scores, "return_attention_scores=True"),
            global_mask=(global_mask, "global tokens (global_mask=)"),
            residual=(return_raw_scores or previous_scores is not None, "carried scores (previous_scores=)"),
        )
        inputs = self._cast(v if q is None else q)
        if memory is None:
            heads = self._project(v, k, inputs, training)
        else:
            heads = self._project_queries(inputs, memory)
            v_mask, k_mask = None, tf.not_equal(memory["valid"], 0)
        limits = call_arguments.limits(
            heads,
            padding={"padding_mask": padding_mask, "k_mask": k_mask, "v_mask": v_mask},
            query_padding=None if state is not None else q_mask,
            free=attention_mask,
            causal=use_causal_mask,
            reads=state is not None,
        )
        options = call_arguments.options(
            heads,
            bias=bias,
            global_mask=global_mask,
            previous_scores=previous_scores,
            return_raw_scores=return_raw_scores,
            reads=state is not None,
        )
        heads, options = attention_positions.enter(self, heads, options, cross=cross, limits=limits, state=state)
        options |= {
            "scale": 1.0 / (self.temperature * math.sqrt(self.head_dim)),
            "dropout": self._dropout(training),
            "return_scores": return_attention_scores,
            "training": bool(training),
        }
        if state is None:
            attended, state = self._attend(heads, limits, options), ()
        else:
            attended, *state = self._read(heads, limits, options, state)
        attended, *rest = attended if return_attention_scores or return_raw_scores else (attended,)
        output = self._join(attended, inputs)
        return (output, *rest, *state) if rest or state else output

    def _project(self, v, k, inputs, training):
        """Heads of inputs that are not projected yet; k is None where v, cast to `inputs`, is the only one."""
        k_inputs = inputs if k is None else self._cast(k)
        v_inputs = k_inputs if k is None or v is k else self._cast(v)
        return Heads(*self.mechanism.project(self, inputs, k_inputs, v_inputs, training=bool(training)))

    def _project_queries(self, inputs, memory):
        """Heads of queries to keys and values that `project_memory` made."""
        q = self.split_heads(self.query_projection(inputs), self.num_heads)
        return Heads(q, tf.cast(memory["key"], q.dtype), tf.cast(memory["value"], q.dtype), {})

    def _attend(self, heads, limits, options):
        """What the mechanism gives for all tokens at once: [B, H, T, D], or a tuple with the scores asked for."""
        k, v = self._expand(heads.k), self._expand(heads.v)
        return self.mechanism.attend(heads.q, k, v, mask=limits, **heads.projected, **options)

    def _join(self, attended, inputs):
        """[B, H, T, D] -> [B, T, d_model] by the output projection; `inputs` are the queries' before theirs."""
        batch, _, length, _ = checks.sizes(attended)
        joined = tf.reshape(tf.transpose(attended, [0, 2, 1, 3]), [batch, length, self.num_heads * self.head_dim])
        return self.output_projection(self.mechanism.finish(self, joined, inputs))

    def project_heads(self, q, k, v, training=False):
        """The default projections: q [B,T,E], k, v [B,S,E] -> [B,H,T,D], [B,Hkv,S,D], [B,Hkv,S,D]."""
        layers = self.query_projection, self.key_projection, self.value_projection
        if training and k is v and projections.together(layers, k):
            if q is k:
                return projections.project(layers, q, self.head_dim)
            q_heads = self.split_heads(self.query_projection(q), self.num_heads)
            return q_heads, *projections.project(layers[1:], k, self.head_dim)
        return (
            self.split_heads(self.query_projection(q), self.num_heads),
            self.split_heads(self.key_projection(k), self.num_kv_heads),
            self.split_heads(self.value_projection(v), self.num_kv_heads),
        )

    def chosen_mechanism(self, query_length, key_length=None, batch_size=None):
        """Which mechanism attends at these lengths: "softmax" or "blockwise" where it is "auto", else its own name.

        Args:
            query_length: T. key_length: S, T by default. batch_size: B. None for what is not static while tracing.
        """
        key_length = query_length if key_length is None else key_length
        if self.positions is not None and self.positions.acts_on == "distance":
            key_length = None  # biases of all pairs are as large as the scores: dense, as for an unknown length
        return self.mechanism.chosen(batch_size, self.num_heads, query_length, key_length)

    # --- Keras' contract ------------------------------------------------------------------------------------------

    def compute_mask(self, inputs, previous_mask):
        # `__call__` hands on q's mask; Keras would hand on v's.
        return None

    def compute_output_shape(self, v_shape, k_shape=None, q_shape=None):
        return (*(q_shape or v_shape)[:-1], self.d_model)

    def compute_output_spec(self, *args, **kwargs):
        # Scores and state come out beside the output: trace `call` rather than trust one shape.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    @classmethod
    def from_keras(cls, layer, **kwargs):
        """A layer with the weights of a built `keras.layers.MultiHeadAttention`.

        Args:
            layer: the Keras layer. It attends over one axis to one axis of features, with value heads of the size of
                its key heads, and without a gate, a sliding window, regularizers and constraints, none of which this
                layer has.
            **kwargs: further arguments of this class, such as `mechanism`.

        Returns:
            A built layer with those four projections: `ours(v=value, k=key, q=query)` gives the same numbers where the
            mechanism is softmax attention. What a mechanism has beside them (a gate, projections for global tokens)
            keeps its initial values.

        Raises:
            TypeError, ValueError: for another kind of layer, options that ours has not, or a mechanism without one of
            the four projections.
        """
        options, weights = keras_weights.read(layer)
        return keras_weights.assign(cls(**{**options, **kwargs}), weights)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _cast(self, x):
        return tf.cast(x, self.compute_dtype)

    def split_heads(self, x, num_heads):
        """[B, T, N*D] -> [B, N, T, D]."""
        batch, length, _ = checks.sizes(x)
        return tf.transpose(tf.reshape(x, [batch, length, num_heads, self.head_dim]), [0, 2, 1, 3])

    def _expand(self, x):
        """Key heads repeated to the query heads, for mechanisms that do not group them by themselves."""
        groups = self.num_heads // self.num_kv_heads
        return x if groups == 1 or self.mechanism.supports.grouped else tf.repeat(x, groups, axis=1)

    def _dropout(self, training):
        if not (training and self.dropout_rate):
            return None
        return self.dropout_rate, tf.cast(self._seed_generator.next(), tf.int32)


def _fresh(initializer):
    return type(initializer).from_config(initializer.get_config())
