"""Training: data, losses, schedules, exact resume, and the commands (`keras_attention.training.translation`)."""

from keras_attention.training.losses import MaskedAccuracy, MaskedCrossentropy, Perplexity, TokenLoss
from keras_attention.training.options import TrainOptions
from keras_attention.training.schedules import WarmupInverseSqrt

__all__ = ["MaskedAccuracy", "MaskedCrossentropy", "Perplexity", "TokenLoss", "TrainOptions", "WarmupInverseSqrt"]
