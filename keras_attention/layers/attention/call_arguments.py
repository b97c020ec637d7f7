"""What `MultiHeadAttention` is called with, checked and brought into one form."""

import tensorflow as tf

from keras_attention.ops.basics import masks


def inputs(v, k, q, memory):
    """The inputs as (v, k, q) of cross-attention, or (x, None, None): self-attention, or queries to a memory."""
    given = [name for name, x in (("v", v), ("k", k), ("q", q)) if x is not None]
    if memory is not None and given not in (["q"], ["v"]):
        raise ValueError(f"With memory= give the queries alone, as q=. Got {', '.join(given) or 'no input'}.")
    if len(given) == 1:
        return next(x for x in (v, k, q) if x is not None), None, None
    if len(given) != 3:
        raise ValueError(
            f"Give one input (self-attention) or three in the order (v, k, q). Got {', '.join(given) or 'none'}; "
            "Keras' order (query, value) would be mha(v=value, k=value, q=query) here."
        )
    return (v, None, None) if v is k and k is q else (v, k, q)


def check_input(name, shape):
    """Raises where an input is not [batch, length, width] with a known width."""
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(f"{name} must have shape (batch, length, width) with a known width. Got {tuple(shape)}.")


def check_supported(mechanism, cross, state, **requests):
    """Raises where a call asks for what the mechanism does not declare.

    Args:
        mechanism: the layer's mechanism.
        cross: whether keys and values come from another sequence.
        state: the decoding state, or None.
        **requests: name of an attribute of `Supports` -> pair of what is asked for (or None) and its name in errors.
    """
    supports = mechanism.supports
    if cross and not supports.cross:
        mechanism.refuse("keys and values of another sequence than the queries'", "mechanism='softmax'")
    if state is not None and supports.state is None:
        mechanism.refuse("a decoding state", "mechanism='softmax'")
    for name, (wanted, what) in requests.items():
        if wanted is not None and wanted is not False and not getattr(supports, name):
            mechanism.refuse(what, "mechanism='longformer'" if name == "global_mask" else "mechanism='softmax'")
    if cross and state is not None:
        raise ValueError(
            "state= is for self-attention: give one input. Keys and values of another sequence are projected once "
            "by project_memory and given as memory=."
        )


def rank_four(name, x, batch, heads, queries, keys):
    """Additive numbers as rank 4, [T, S] and [H, T, S] with axes of 1 in front; static sizes are checked."""
    x = tf.convert_to_tensor(x)
    if x.shape.rank not in (2, 3, 4):
        raise ValueError(f"{name} must have shape [T, S], [H, T, S] or [B, H, T, S]. Got {tuple(x.shape)}.")
    for _ in range(4 - x.shape.rank):
        x = x[None]
    masks.check_broadcast(name, x.shape, batch, heads, queries, keys)
    return x
