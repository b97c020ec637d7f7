"""Translation with the model in training, for its validation scores."""

from keras_attention.inference.model_backend import ModelBackend
from keras_attention.inference.translator import Translator


def greedy_translator(model, tokenizer):
    """A `Translator` that always uses the model's current weights; it answers as the finished run folder will.

    Args:
        model: with `max_length`, `init_state` and `step`, such as `keras_attention.models.Transformer`.
        tokenizer: with `encode` and `decode`.

    Returns:
        `Translator`: list of `str` in, list of `str` out; greedy where it is called without options.
    """
    return Translator(ModelBackend(model, tokenizer), batch_size=64)
