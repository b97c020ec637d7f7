"""Training: data, losses, schedules, exact resume, and the commands (`keras_attention.training.translation`)."""

from keras_attention.lazy_names import lazy_names

__all__ = [
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "Perplexity",
    "TokenLoss",
    "TrainOptions",
    "TranslationOptions",
    "WarmupInverseSqrt",
]

# Losses and schedules load TensorFlow, which the options of a command can do without.
_LOSSES = "keras_attention.training.optimization.losses"
_OPTIONS = "keras_attention.training.translation.options"
__getattr__, __dir__ = lazy_names(
    __name__,
    MaskedAccuracy=_LOSSES,
    MaskedCrossentropy=_LOSSES,
    Perplexity=_LOSSES,
    TokenLoss=_LOSSES,
    TrainOptions=_OPTIONS,
    TranslationOptions=_OPTIONS,
    WarmupInverseSqrt="keras_attention.training.optimization.schedules",
)
