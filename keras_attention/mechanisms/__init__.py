"""Ways to attend: one file each, found by name."""

from keras_attention.mechanisms.base import Mechanism, Supports, class_of, get, names, register
from keras_attention.mechanisms.softmax import SoftmaxAttention

__all__ = ["Mechanism", "SoftmaxAttention", "Supports", "class_of", "get", "names", "register"]
