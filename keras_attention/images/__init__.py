"""Image files as arrays, and what a model of images takes and answers."""

from keras_attention.images.files import read_image
from keras_attention.images.task import ImageInput, ImageTask
from keras_attention.lazy_names import lazy_names

__all__ = ["Classification", "Classifier", "ImageInput", "ImageTask", "read_image"]

# They lived here before `keras_attention.inference` was there.
_CLASSIFIER = "keras_attention.inference.classifier"
__getattr__, __dir__ = lazy_names(__name__, Classification=_CLASSIFIER, Classifier=_CLASSIFIER)
