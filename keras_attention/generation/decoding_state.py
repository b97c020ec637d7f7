"""The state in which whole answers are decoded."""


def decoding_state(model, source, capacity):
    """One that grows, which costs less, where the model has one; otherwise one of `capacity` positions.

    Args:
        model: with `init_state`, such as `keras_attention.models.Transformer`.
        source: integer [B, S].
        capacity: the most tokens of an answer.

    Returns:
        The state as `model.init_state` makes it.
    """
    try:
        return model.init_state(source)
    except ValueError:  # a rolling cache, for one, has a size by its nature
        return model.init_state(source, max_length=capacity)
