"""Trained models at work: what a folder on disk holds, and answers from it."""

from keras_attention.inference.classifier import Classification, Classifier
from keras_attention.inference.text_generator import TextGenerator
from keras_attention.inference.translator import Translator, Truncation

__all__ = ["Classification", "Classifier", "TextGenerator", "Translator", "Truncation"]
