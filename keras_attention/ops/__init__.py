"""Pure functions of tensors: no weights, no Keras layers, one idea a file."""

import keras

from keras_attention.backend import require_tensorflow

# All that runs Keras comes past here; ~/.keras/keras.json may name another backend than the environment.
require_tensorflow(keras.config.backend())
