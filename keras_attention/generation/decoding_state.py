"""The state in which whole answers are decoded."""


def decoding_state(model, start, capacity):
    """One that grows, which costs less, where the model has one; otherwise one of `capacity` positions.

    Args:
        model: with `init_state`, such as `keras_attention.models.Transformer` and `DecoderLM`.
        start: what its `init_state` takes first: source ids [B, S], or the number of sequences.
        capacity: the most tokens of an answer; what a rolling cache keeps.

    Returns:
        The state as `model.init_state` makes it.
    """
    try:
        return model.init_state(start)
    except ValueError:  # a rolling cache, for one, has a size by its nature
        return model.init_state(start, max_length=capacity)
