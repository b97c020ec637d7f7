"""Image files as arrays, what a classifier of images takes and answers, and classifying with whatever holds one."""

from keras_attention.images.classifier import Classification, Classifier
from keras_attention.images.files import read_image
from keras_attention.images.task import ImageInput, ImageTask

__all__ = ["Classification", "Classifier", "ImageInput", "ImageTask", "read_image"]
