"""Activation functions that Keras does not have."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("keras_attention")
def quick_gelu(x):
    """x * sigmoid(1.702 x): the approximation of GELU that OpenAI's CLIP weights were trained with.

    It differs from GELU by up to 0.02, so that weights made with one are wrong with the other.

    Reference: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415
    """
    return x * tf.sigmoid(1.702 * x)
