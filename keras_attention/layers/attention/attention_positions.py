"""How a position scheme enters one attention layer: which mechanisms take it, and where its tokens stand."""

import tensorflow as tf

from keras_attention.layers.attention.heads import Heads
from keras_attention.layers.positions import schemes
from keras_attention.ops.basics import checks
from keras_attention.ops.dense.dot_product import accumulation_dtype

# What `Supports` must declare for each kind of scheme.
_NEEDS = {"heads": "rotary", "distance": "relative", "grid": "bias"}
# A mechanism's own count of the tokens it has read, in the order in which to look.
_COUNTS = ("lengths", "valid")
_OWN_COUNT = "position"


def check(scheme, mechanism):
    """Raises where the mechanism cannot honour the scheme."""
    if scheme is not None and not getattr(mechanism.supports, _NEEDS[scheme.acts_on]):
        mechanism.refuse(f"positions={schemes.name_of(scheme)}", "mechanism='softmax'")


def enter(layer, heads, options, *, cross, limits, state):
    """Brings a layer's positions into what its mechanism is given.

    Args:
        layer: the `MultiHeadAttention`.
        heads: `Heads` of one sequence.
        options: further arguments of the mechanism's `attend`, such as the caller's bias, of rank 4.
        cross: whether the keys are another sequence's.
        limits: `AttentionMask`; its padding [B, T] marks real tokens.
        state: the decoding state that the tokens are read into, or None.

    Returns:
        `(heads, options)` with the positions in them.
    """
    scheme = layer.positions
    if scheme is None:
        return heads, options
    if cross:
        raise ValueError(
            f"positions={schemes.name_of(scheme)} tells where queries and keys stand in one sequence. Got "
            "keys of another one: use positions=None there, and positions that are added to the embeddings."
        )
    if scheme.acts_on == "distance":
        return heads, {**options, "distance_bias": scheme.bias_at}
    if scheme.acts_on == "grid":
        grid = scheme.bias_of_grid()[None]
        _check_grid(scheme, grid.shape[-1], heads.q.shape[2], state)
        if "bias" in options:
            dtype = accumulation_dtype(heads.q.dtype)
            grid = tf.cast(grid, dtype) + tf.cast(options["bias"], dtype)
        return heads, {**options, "bias": grid}
    places = _places(limits.padding, checks.sizes(heads.q)[2], None if state is None else _count(state))

    def rotate(x):
        return scheme.rotate(x, places)

    if layer.mechanism.supports.rotary == "features":
        return heads, {**options, "rotate": rotate}
    q, k, projected = layer.mechanism.rotated(heads.q, heads.k, heads.projected, rotate)
    return Heads(q, k, heads.v, projected), options


def with_count(layer, state, batch_size):
    """A new decoding state, with a count of the tokens read where the mechanism keeps none and the scheme needs it."""
    counts = layer.positions is not None and layer.positions.acts_on == "heads"
    if not counts or any(name in state for name in _COUNTS):
        return state
    return {**state, _OWN_COUNT: tf.zeros([batch_size], tf.int32)}


def split_count(layer, state):
    """`(the mechanism's own state, the count that `with_count` added or None)`."""
    if layer.positions is None or _OWN_COUNT not in state:
        return state, None
    return {name: x for name, x in state.items() if name != _OWN_COUNT}, state[_OWN_COUNT]


def counted(state, count, valid, length):
    """The mechanism's new state with the count `count` (or None) grown by the real ones of `length` new tokens."""
    if count is None:
        return state
    new = length if valid is None else tf.reduce_sum(tf.cast(valid, tf.int32), axis=1)
    return {**state, _OWN_COUNT: count + new}


def _count(state):
    """int32 [B]: how many real tokens were read into the state."""
    if "valid" in state:
        return tf.reduce_sum(state["valid"], axis=1)
    return state["lengths"] if "lengths" in state else state[_OWN_COUNT]


def _places(padding, length, past):
    """Positions of the new tokens among the real ones: int32 [T], or [B, T] where rows differ."""
    if padding is None:
        return tf.range(length) if past is None else past[:, None] + tf.range(length)
    counts = tf.cumsum(tf.cast(padding, tf.int32), axis=1)
    # Padding stands where the last real token before it stands.
    return tf.maximum(counts - 1 if past is None else past[:, None] + counts - 1, 0)


def _check_grid(scheme, places, length, state):
    if state is not None:
        raise ValueError(
            f"positions={schemes.name_of(scheme)} is for a grid that is there at once, not for a decoding "
            "state: use positions='rotary', 'alibi' or 'relative'."
        )
    if length is not None and length != places:
        raise ValueError(
            f"positions={schemes.name_of(scheme)} has {places} places. Got a sequence of {length}: make it "
            "for that grid, or take resized()."
        )
