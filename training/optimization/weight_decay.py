"""Which weights of a model decay, and which do not."""

# Parts of a variable's path that say that it is no matrix of a linear map.
_KEPT = ("position", "relative", "class_token", "temperature")


def without_decay(model):
    """The trainable variables that weight decay leaves alone.

    Decay keeps the matrices of linear maps small. Biases, scales of norms and of residual branches (everything of one
    axis), tables of positions and of relative biases, class tokens and temperatures have no size that should be small,
    as the recipes of DeiT and Swin have it.

    Args:
        model: built model.

    Returns:
        list of variables, for `optimizer.exclude_from_weight_decay(var_list=...)`.
    """
    return [v for v in model.trainable_variables if len(v.shape) < 2 or any(part in v.path for part in _KEPT)]
