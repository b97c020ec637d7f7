"""Training: data, losses, schedules, exact resume, and the commands (`keras_attention.training.translation`)."""

from keras_attention.training.optimization.losses import MaskedAccuracy, MaskedCrossentropy, Perplexity, TokenLoss
from keras_attention.training.optimization.schedules import WarmupInverseSqrt
from keras_attention.training.translation.options import TrainOptions, TranslationOptions

__all__ = [
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "Perplexity",
    "TokenLoss",
    "TrainOptions",
    "TranslationOptions",
    "WarmupInverseSqrt",
]
