"""Keras' implicit masks: the boolean (batch, length) tensor that rides on an embedding's output."""


def get(tensor):
    """The implicit mask of a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def put(tensor, mask):
    """Hangs a mask on a tensor that a layer has just made (never on one that it was given)."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def of_inputs(v, k, q, v_mask, k_mask, q_mask):
    """The masks of v, k and q: those given, otherwise the implicit ones. Of a lone input (v), its own three times."""
    v_mask = get(v) if v_mask is None else v_mask
    if k_mask is None:
        k_mask = v_mask if q is None else get(k)
    return v_mask, k_mask, get(v if q is None else q) if q_mask is None else q_mask
