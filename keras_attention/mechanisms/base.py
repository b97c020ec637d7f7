"""What an attention mechanism is: its weights, its decoding state and what it supports."""

import dataclasses

import keras
import tensorflow as tf

from keras_attention.mechanisms.from_text import from_text
from keras_attention.mechanisms.registry import class_of, name_of, names, register  # noqa: F401
from keras_attention.ops.basics import checks
from keras_attention.ops.dense import kv_cache
from keras_attention.recorded import Recorded


@dataclasses.dataclass(frozen=True)
class Supports:
    """What a mechanism can honour. Callers ask here; nobody asks for a class.

    Attributes:
        causal: the causal flag.
        cross: keys and values from another sequence than the queries.
        padding_mask: keys taken out by a [B, S] mask.
        free_mask: any mask [B, H, T, S].
        bias: an additive bias [B, H, T, S].
        scores: `return_attention_scores`.
        global_mask: tokens marked to see and be seen by all.
        dropout: dropout of attention weights.
        temperature: a temperature other than 1.
        grouped: keys and values with fewer heads than the queries, without repeating them first.
        rotary: how it takes rotary positions: "heads", q and k come turned; "features", it turns what it makes of them
            by the function `rotate`; None, not at all.
        relative: a bias that is a function of the distance between query and key (ALiBi, T5's), without a [T, S] table
            where the mechanism has none.
        residual: scores carried from layer to layer (`previous_scores=`, `return_raw_scores=`).
        grid: whether positions are places in a grid, whose shape its options give.
        state: None, "kv" (grows or has a fixed size), "rolling" or "recurrent".
        onnx: whether graphs with it convert to ONNX; a string says why not.
        time, memory: cost in T, S and the mechanism's own parameters, for the tables.
        paper: authors, year and link.
    """

    causal: bool = True
    cross: bool = True
    padding_mask: bool = True
    free_mask: bool = True
    bias: bool = True
    scores: bool = True
    global_mask: bool = False
    dropout: bool = True
    temperature: bool = True
    grouped: bool = False
    rotary: str | None = "heads"
    relative: bool = False
    residual: bool = False
    grid: bool = False
    state: str | None = "kv"
    onnx: bool | str = True
    time: str = "T*S"
    memory: str = "T*S"
    paper: str = ""


class Mechanism(Recorded, keras.layers.Layer):
    """An attention mechanism. Subclasses give `attend` and `supports`; the other hooks have defaults.

    A mechanism belongs to one `MultiHeadAttention` (its owner), which projects, splits heads, merges masks and calls
    `attend`. Each owner clones the mechanism from its config, so that one object given to two layers shares nothing.

    `attend` and the state hooks are called directly, not through `__call__`: weights are read as they are stored and
    each mechanism casts them itself.
    """

    supports = Supports()

    @classmethod
    def for_grid(cls, rows, columns, num_prefix_tokens):
        """The mechanism as a model of images makes it from its name: over a grid, row by row, after some tokens."""
        return cls()

    def build_projections(self, owner, q_width, k_width, v_width):
        """Creates the owner's projections: query, key and value unless a mechanism shares or adds some."""
        owner.add_projection("query", q_width, owner.num_heads)
        owner.add_projection("key", k_width, owner.num_kv_heads)
        owner.add_projection("value", v_width, owner.num_kv_heads)

    def build_heads(self, owner):
        """Creates weights of the mechanism itself; the owner's num_heads, num_kv_heads and head_dim are known."""

    def project(self, owner, q, k, v, training=False):
        """q [B,T,E], k [B,S,E], v [B,S,E] -> head tensors q [B,H,T,D], k, v [B,Hkv,S,D] and a dict for `attend`."""
        q, k, v = owner.project_heads(q, k, v, training)
        return q, k, v, {}

    def rotated(self, q, k, projected, rotate):
        """What `project` gave with positions brought in by `rotate`: q, k and the dict, where `rotary` is "heads"."""
        return rotate(q), rotate(k), projected

    def attend(
        self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False, **projected
    ):
        """Attends.

        What `supports` declares beyond the common arguments comes only where it was asked for: `global_mask` boolean
        [B, T]; `rotate`, a function that turns features [B, H, T, F]; `distance_bias`, a function from int32
        [B|1, H|1, ...], key position - query position, to finite numbers [B|1, H, ...] for the scores;
        `previous_scores` [B, H, T, S], which are added to the products, and `return_raw_scores`, which asks for the
        sums, before bias and mask, as the last result.

        Args:
            q: [B, H, T, D]; k, v: [B, H, S, D] (Hkv heads where `supports.grouped`).
            mask: `AttentionMask`.
            scale: factor on the scores (temperature included).
            bias: None or floating, rank 4, broadcastable to [B, H, T, S].
            dropout: None, or a pair (rate, int32 [2] seed).
            return_scores: also return the weights [B, H, T, S].
            training: Python bool.
            **projected: the dict that `project` returned.

        Returns:
            [B, H, T, D], or a pair with the weights.
        """
        raise NotImplementedError

    def finish(self, owner, attended, q):
        """[B, T, H*D] attended and the query input [B, T, E] -> [B, T, H*D], before the output projection."""
        return attended

    def init_state(self, owner, batch_size, dtype, max_length=None):
        """An empty decoding state; `max_length` None grows, an int is a fixed size."""
        args = (batch_size, owner.num_kv_heads, owner.head_dim, dtype)
        return kv_cache.growing(*args) if max_length is None else kv_cache.fixed(*args, max_length)

    def attend_state(self, q, k, v, *, state, valid, mask, expand, **kwargs):
        """Reads T >= 1 new tokens into the state and attends from them: a prefill and a step alike.

        Args:
            q, k, v: heads of the new tokens, k and v with Hkv heads.
            state: as `init_state` made it.
            valid: boolean [B, T] of real new tokens, or None.
            mask: `AttentionMask` with the free part only.
            expand: function that repeats [B, Hkv, S, D] to the query heads where `supports.grouped` is False.
            **kwargs: as for `attend`.

        Returns:
            `(attended, state)`; rows whose fixed-size state is full come out as NaN and keep their state.
        """
        state, padding, positions, overflow = kv_cache.append(state, k, v, valid)
        mask = dataclasses.replace(mask, padding=padding, causal=True, query_positions=positions)
        attended = self.attend(
            q, expand(tf.cast(state["key"], q.dtype)), expand(tf.cast(state["value"], q.dtype)), mask=mask, **kwargs
        )
        if overflow is not None:
            # A graph cannot be trusted to stop: the row says so itself.
            spoil = lambda x: tf.where(overflow[:, None, None, None], tf.constant(float("nan"), x.dtype), x)  # noqa: E731
            attended = tf.nest.map_structure(spoil, attended)
        return attended, state

    def capacity(self, state):
        """How many positions a state can hold in all; None where it has no end."""
        return checks.sizes(state["key"])[2] if "lengths" in state else None

    def reorder(self, state, parents):
        """The state's rows `parents` (int32 [B']), for beams."""
        return kv_cache.reorder(state, parents)

    def chosen(self, batch, heads, queries, keys):
        """Name of the mechanism that attends at these sizes (None where not static): its own unless it chooses."""
        return self.registered_name

    def refuse(self, request, use):
        """Raises for a request that this mechanism cannot honour, naming one that can."""
        raise ValueError(f"mechanism={self.registered_name!r} does not support {request}; use {use}.")

    def copied(self, **changes):
        """A mechanism with the same options and no weights; `changes` take the place of parts of its config."""
        return type(self).from_config({**self.get_config(), **changes})

    @property
    def registered_name(self):
        return name_of(type(self)) or type(self).__name__


def get(identifier):
    """A mechanism from text (a name, "local:radius=3"), a `Mechanism`, or its config, as Keras looks up activations."""
    if isinstance(identifier, Mechanism):
        return identifier
    if isinstance(identifier, str):
        return from_text(identifier)
    if isinstance(identifier, dict):
        mechanism = keras.saving.deserialize_keras_object(identifier)
        if isinstance(mechanism, Mechanism):
            return mechanism
    raise ValueError(f"mechanism must be a name, a Mechanism or its config. Got {identifier!r}.")


def for_grid(identifier, grid, num_prefix_tokens):
    """A mechanism for a grid (rows, columns) after some tokens, from its name; all else stays what it is."""
    if isinstance(identifier, str) and identifier != "auto" and ":" not in identifier:
        return class_of(identifier).for_grid(*grid, num_prefix_tokens)
    return identifier


def serialized(identifier):
    """What a config holds for a mechanism: an object's own config; names, configs and None as they are."""
    return keras.saving.serialize_keras_object(identifier) if isinstance(identifier, Mechanism) else identifier


def clone(mechanism, dtype):
    """A fresh mechanism with the same options under the owner's dtype policy."""
    return mechanism.copied(dtype=dtype, name="mechanism")
