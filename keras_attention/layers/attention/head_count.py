"""The documents' rule for the number of heads."""

from keras_attention.ops.basics import checks


def recommended_num_heads(d_model, divisor=False):
    """min(64, max(8, d_model // 64)), the documents' rule.

    The rule need not divide `d_model` (15 for 1000), which `MultiHeadAttention` requires unless `head_dim` is given.

    Args:
        d_model: width of the model.
        divisor: return the divisor of `d_model` that is nearest to the rule instead (the smaller of two as near).

    Returns:
        An int. `recommended_num_heads(512)` is 8.
    """
    d_model = checks.positive_int("d_model", d_model)
    heads = min(64, max(8, d_model // 64))
    if not divisor:
        return heads
    return min((n for n in range(1, d_model + 1) if d_model % n == 0), key=lambda n: (abs(n - heads), n))


def num_heads_for(d_model, num_heads=None):
    """The number of heads of a model: as given, or the recommended divisor of `d_model`. It must divide `d_model`."""
    heads = recommended_num_heads(d_model, divisor=True) if num_heads is None else num_heads
    checks.divisible("d_model", d_model, "num_heads", checks.positive_int("num_heads", heads))
    return heads
