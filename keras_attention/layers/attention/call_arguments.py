"""What `MultiHeadAttention` is called with, checked and brought into one form."""

import tensorflow as tf

from keras_attention.ops.basics import checks, masks


def inputs(v, k, q, memory):
    """The inputs as (v, k, q) of cross-attention, or (x, None, None): self-attention, or queries to a memory."""
    given = [name for name, x in (("v", v), ("k", k), ("q", q)) if x is not None]
    if memory is not None and given not in (["q"], ["v"]):
        raise ValueError(f"With memory= give the queries alone, as q=. Got {', '.join(given) or 'no input'}.")
    if len(given) not in (1, 3):
        raise ValueError(
            f"Give one input (self-attention) or three in the order (v, k, q). Got {', '.join(given) or 'none'}; "
            "Keras' order (query, value) would be mha(v=value, k=value, q=query) here."
        )
    if len(given) == 1:
        v, k, q = next(x for x in (v, k, q) if x is not None), None, None
    elif v is k and k is q:
        k = q = None
    for name, x in (("v", v), ("k", k), ("q", q)):
        if hasattr(x, "shape"):  # a list has none until Keras has made a tensor of it
            check_input(name, x.shape)
    return v, k, q


def check_input(name, shape):
    """Raises where an input is not [batch, length, width] with a known width."""
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(f"{name} must have shape (batch, length, width) with a known width. Got {tuple(shape)}.")


def check_no_key_masks(k_mask=None, v_mask=None, **_):
    """Raises where masks of keys come with a memory."""
    given = [f"{name}=" for name, mask in (("k_mask", k_mask), ("v_mask", v_mask)) if mask is not None]
    if given:
        raise ValueError(
            f"{' and '.join(given)} cannot be given with memory=, whose keys are projected already: use "
            "padding_mask= of project_memory."
        )


def check_options(mechanism, dropout_rate, temperature):
    """Raises where a layer's options ask for what its mechanism does not declare."""
    if dropout_rate and not mechanism.supports.dropout:
        what = f"dropout of attention weights (dropout_rate={dropout_rate})"
        mechanism.refuse(what, "dropout_rate=0 or mechanism='softmax'")
    if temperature != 1 and not mechanism.supports.temperature:
        mechanism.refuse(f"temperature={temperature}", "mechanism='softmax'")


def check_supported(mechanism, cross, state, memory, **requests):
    """Raises where a call asks for what the mechanism does not declare.

    Args:
        mechanism: the layer's mechanism.
        cross: whether keys and values come from another sequence.
        state: the decoding state, or None.
        memory: keys and values that are projected already, or None.
        **requests: name of an attribute of `Supports` -> pair of what is asked for (or None) and its name in errors.
    """
    supports = mechanism.supports
    if memory is not None and state is not None:
        raise ValueError("memory= and state= cannot be given together: one call attends to a memory or reads tokens.")
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


def key_padding(given, batch, keys):
    """The keys that all of some masks leave: boolean [B, S], or None.

    Args:
        given: dict of name in errors -> mask [B, S] as a caller gave it, or None.
        batch, keys: B and S.
    """
    padding = [masks.key_mask(mask, name, batch, keys) for name, mask in given.items() if mask is not None]
    # An implicit mask usually comes in on k and v as one tensor.
    return masks.joined(*(m for i, m in enumerate(padding) if all(m is not other for other in padding[:i])))


def limits(heads, *, padding, query_padding, free, causal, reads):
    """Everything that keeps a query from a key, as one `AttentionMask`.

    Args:
        heads: `Heads`.
        padding: see `key_padding`.
        query_padding: mask [B, T] of real queries, or None.
        free: mask of pairs as the caller gave it, or None.
        causal: whether the future is hidden.
        reads: whether the tokens are read into a state, whose keys stand before theirs.
    """
    (batch, num_heads, queries), keys = checks.sizes(heads.q)[:3], checks.sizes(heads.k)[2]
    return masks.AttentionMask(
        padding=key_padding(padding, batch, keys),
        query_padding=None if query_padding is None else masks.key_mask(query_padding, "q_mask", batch, queries),
        # How many keys a state holds is known only when the graph runs.
        free=None if free is None else masks.free_mask(free, batch, queries, None if reads else keys, num_heads),
        causal=bool(causal and not reads),
    )


def options(heads, *, bias, global_mask, previous_scores, return_raw_scores, reads):
    """The arguments of a mechanism's `attend` that were asked for, checked; the others are left out."""
    batch, num_heads, queries, _ = checks.sizes(heads.q)
    sizes = (batch, num_heads, queries, None if reads else checks.sizes(heads.k)[2])
    given = {
        "bias": bias if bias is None else rank_four("bias", bias, *sizes),
        "global_mask": global_mask if global_mask is None else masks.marks(global_mask, "global_mask", batch, queries),
        "previous_scores": (
            previous_scores if previous_scores is None else rank_four("previous_scores", previous_scores, *sizes)
        ),
        "return_raw_scores": return_raw_scores or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def rank_four(name, x, batch, heads, queries, keys):
    """Additive numbers as rank 4, [T, S] and [H, T, S] with axes of 1 in front; static sizes are checked."""
    x = tf.convert_to_tensor(x)
    if x.shape.rank not in (2, 3, 4):
        raise ValueError(f"{name} must have shape [T, S], [H, T, S] or [B, H, T, S]. Got {tuple(x.shape)}.")
    for _ in range(4 - x.shape.rank):
        x = x[None]
    masks.check_broadcast(name, x.shape, batch, heads, queries, keys)
    return x
