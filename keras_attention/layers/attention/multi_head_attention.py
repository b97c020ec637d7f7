"""The attention layer: projections, heads, masks and state around one mechanism."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_attention.layers.attention import (
    attention_positions,
    call_arguments,
    implicit_masks,
    keras_weights,
    projections,
)
from keras_attention.layers.positions import schemes
from keras_attention.mechanisms import base as mechanisms
from keras_attention.ops.basics import checks, masks


@keras.saving.register_keras_serializable("keras_attention")
class MultiHeadAttention(keras.layers.Layer):
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
        self._given_kv_heads = num_kv_heads
        self.num_kv_heads = checks.positive_int("num_kv_heads", num_heads if num_kv_heads is None else num_kv_heads)
        checks.divisible("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        self._given_head_dim = head_dim
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
        self._is_auto = mechanism == "auto"
        self.mechanism = mechanisms.clone(mechanisms.get(mechanism), self.dtype_policy)
        self.positions = schemes.get(positions, self.num_heads, self.head_dim, self.dtype_policy)
        self._check_mechanism()
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
            given = [f"{name}=" for name in ("k_mask", "v_mask") if kwargs.get(name) is not None]
            if given:
                raise ValueError(
                    f"{' and '.join(given)} cannot be given with memory=, whose keys are projected already: use "
                    "padding_mask= of project_memory."
                )
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
        for name, x in (("v", v), ("k", k), ("q", q)):
            if x is not None:
                call_arguments.check_input(name, x.shape)
        v_mask = implicit_masks.get(v) if v_mask is None else v_mask
        if q is None:
            k_mask = v_mask if k_mask is None else k_mask
            q_mask = implicit_masks.get(v) if q_mask is None else q_mask
        else:
            k_mask = implicit_masks.get(k) if k_mask is None else k_mask
            q_mask = implicit_masks.get(q) if q_mask is None else q_mask
        if memory is not None and state is not None:
            raise ValueError(
                "memory= and state= cannot be given together: one call attends to a memory or reads tokens."
            )
        cross = q is not None or memory is not None
        call_arguments.check_supported(
            self.mechanism,
            cross,
            state,
            free_mask=(attention_mask, "a free mask (mask=)"),
            bias=(bias, "an additive bias (bias=)"),
            padding_mask=(padding_mask, "a padding mask"),
            causal=(use_causal_mask, "use_causal_mask=True"),
            scores=(return_attention_scores, "return_attention_scores=True"),
            global_mask=(global_mask, "global tokens (global_mask=)"),
            residual=(return_raw_scores or previous_scores is not None, "carried scores (previous_scores=)"),
        )
        inputs = self._cast(v if q is None else q)
        if memory is not None:
            q_heads = self.split_heads(self.query_projection(inputs), self.num_heads)
            k_heads, v_heads = (tf.cast(memory[part], q_heads.dtype) for part in ("key", "value"))
            k_mask, v_mask, projected = tf.not_equal(memory["valid"], 0), None, {}
        else:
            k_inputs = inputs if q is None else self._cast(k)
            v_inputs = inputs if q is None else k_inputs if v is k else self._cast(v)
            q_heads, k_heads, v_heads, projected = self.mechanism.project(
                self, inputs, k_inputs, v_inputs, training=bool(training)
            )
        batch, length = checks.sizes(q_heads)[0], checks.sizes(q_heads)[2]
        keys = checks.sizes(k_heads)[2]
        # A state's keys stand before the new ones: how many is known only when the graph runs.
        all_keys = keys if state is None else None
        if bias is not None:
            bias = call_arguments.rank_four("bias", bias, batch, self.num_heads, length, all_keys)
        if state is None:
            limits = self._mask(
                attention_mask, padding_mask, v_mask, k_mask, q_mask, use_causal_mask, batch, length, keys
            )
        else:
            limits = self._mask(None, padding_mask, v_mask, k_mask, None, False, batch, length, keys)
            free = attention_mask
            free = None if free is None else masks.free_mask(free, batch, length, None, self.num_heads)
        q_heads, k_heads, projected, bias = attention_positions.enter(
            self, q_heads, k_heads, projected, bias, cross=cross, padding=limits.padding, state=state
        )
        arguments = {
            "scale": 1.0 / (self.temperature * math.sqrt(self.head_dim)),
            "dropout": self._dropout(training),
            "return_scores": return_attention_scores,
            "training": bool(training),
            **projected,
        }
        if bias is not None:
            arguments["bias"] = bias
        if global_mask is not None:
            arguments["global_mask"] = masks.marks(global_mask, "global_mask", batch, length)
        if previous_scores is not None:
            arguments["previous_scores"] = call_arguments.rank_four(
                "previous_scores", previous_scores, batch, self.num_heads, length, all_keys
            )
        if return_raw_scores:
            arguments["return_raw_scores"] = True
        if state is None:
            attended = self.mechanism.attend(
                q_heads, self._expand(k_heads), self._expand(v_heads), mask=limits, **arguments
            )
        else:
            own, count = attention_positions.split_count(self, state)
            attended, own = self.mechanism.attend_state(
                q_heads,
                k_heads,
                v_heads,
                state=own,
                valid=limits.padding,
                mask=masks.AttentionMask(free=free),
                expand=self._expand,
                **arguments,
            )
            state = attention_positions.counted(own, count, limits.padding, length)
        attended, *rest = attended if return_attention_scores or return_raw_scores else (attended,)
        joined = tf.reshape(tf.transpose(attended, [0, 2, 1, 3]), [batch, length, self.num_heads * self.head_dim])
        output = self.output_projection(self.mechanism.finish(self, joined, inputs))
        rest += [] if state is None else [state]
        return (output, *rest) if rest else output

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

    # --- decoding -------------------------------------------------------------------------------------------------

    def init_state(self, batch_size, max_length=None):
        """An empty decoding state of `batch_size` rows, for `call(state=)`.

        Args:
            batch_size: an int or a scalar tensor.
            max_length: None for a state that grows by concatenation; an int for one of that fixed size, with a length
                per row, as XLA, tf.while_loop and TensorFlow Serving need. Past its end eager calls raise ValueError
                and graphs put NaN into that row.

        Returns:
            A dict of plain tensors, batch first.
        """
        if self.mechanism.supports.state is None:
            self.mechanism.refuse("a decoding state", "mechanism='softmax'")
        if max_length is not None:
            max_length = checks.positive_int("max_length", max_length)
        state = self.mechanism.init_state(self, batch_size, tf.as_dtype(self.compute_dtype), max_length)
        return attention_positions.with_count(self, state, batch_size)

    def reorder_state(self, state, parents):
        """The rows `parents` (int32 [B']) of a state: what beam search needs after each step."""
        return self.mechanism.reorder(state, parents)

    def project_memory(self, v, k=None, padding_mask=None):
        """Keys and values of a sequence that will be attended to many times (an encoder's output).

        Args:
            v: [B, S, E]; k: the same by default. Their implicit masks are honoured.
            padding_mask: boolean [B, S], True = a real key.

        Returns:
            {"key": [B, Hkv, S, D], "value": [B, Hkv, S, D], "valid": int32 [B, S]} for `call(memory=)`.
        """
        if not self.built:
            raise ValueError(f"Layer {self.name!r} has no weights yet: call or build it before project_memory.")
        if not self.mechanism.supports.cross:
            self.mechanism.refuse("keys of another sequence (project_memory)", "mechanism='softmax'")
        k = v if k is None else k
        # Read before the cast, which makes tensors without them.
        v_mask, k_mask = implicit_masks.get(v), implicit_masks.get(k)
        k, v = self._cast(k), self._cast(v)
        batch, length, _ = checks.sizes(k)
        padding = self._mask(None, padding_mask, v_mask, k_mask, None, False, batch, length, length).padding
        valid = tf.ones([batch, length], tf.int32) if padding is None else tf.cast(padding, tf.int32)
        return {
            "key": self.split_heads(self.key_projection(k), self.num_kv_heads),
            "value": self.split_heads(self.value_projection(v), self.num_kv_heads),
            "valid": valid,
        }

    # --- Keras' contract ------------------------------------------------------------------------------------------

    def compute_mask(self, inputs, previous_mask):
        # `__call__` hands on q's mask; Keras would hand on v's.
        return None

    def compute_output_shape(self, v_shape, k_shape=None, q_shape=None):
        return (*(q_shape or v_shape)[:-1], self.d_model)

    def compute_output_spec(self, *args, **kwargs):
        # Scores and state come out beside the output: trace `call` rather than trust one shape.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "mechanism": "auto" if self._is_auto else keras.saving.serialize_keras_object(self.mechanism),
            "num_kv_heads": self._given_kv_heads,
            "head_dim": self._given_head_dim,
            "positions": schemes.serialized(self.positions),
            "dropout_rate": self.dropout_rate,
            "temperature": self.temperature,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
        }

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
        built = cls(**{**options, **kwargs})
        widths = {name: int(arrays[0].shape[0]) for name, arrays in weights.items()}
        built.build((None, None, widths["value"]), (None, None, widths["key"]), (None, None, widths["query"]))
        for name, arrays in weights.items():
            if not hasattr(built, f"{name}_projection"):
                built.mechanism.refuse(f"weights of a {name} projection, which it has not", "mechanism='softmax'")
            target = getattr(built, f"{name}_projection").weights
            for to, array in zip(target, arrays, strict=True):
                to.assign(np.reshape(array, to.shape))
        return built

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

    def _mask(self, mask, padding_mask, v_mask, k_mask, q_mask, use_causal_mask, batch, t, s):
        padding = [
            masks.key_mask(given, name, batch, s)
            for name, given in (("padding_mask", padding_mask), ("k_mask", k_mask), ("v_mask", v_mask))
            if given is not None
        ]
        # An implicit mask usually comes in on k and v as one tensor.
        padding = [m for i, m in enumerate(padding) if all(m is not other for other in padding[:i])]
        return masks.AttentionMask(
            padding=masks.joined(*padding),
            query_padding=None if q_mask is None else masks.key_mask(q_mask, "q_mask", batch, t),
            free=None if mask is None else masks.free_mask(mask, batch, t, s, self.num_heads),
            causal=bool(use_causal_mask),
        )

    def _check_mechanism(self):
        supports, mechanism = self.mechanism.supports, self.mechanism
        if self.dropout_rate and not supports.dropout:
            what = f"dropout of attention weights (dropout_rate={self.dropout_rate})"
            mechanism.refuse(what, "dropout_rate=0 or mechanism='softmax'")
        if self.temperature != 1 and not supports.temperature:
            mechanism.refuse(f"temperature={self.temperature}", "mechanism='softmax'")
        attention_positions.check(self.positions, mechanism)


def _fresh(initializer):
    return type(initializer).from_config(initializer.get_config())
