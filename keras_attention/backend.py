"""The one Keras backend that this package runs on; importing this module checks it."""

import os


def require_tensorflow():
    """Raises ImportError where Keras is set to another backend, before Keras fails to import what that one needs."""
    wanted = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if wanted == "tensorflow":
        import keras  # only now: importing Keras imports its backend

        wanted = keras.config.backend()
    if wanted != "tensorflow":
        raise ImportError(
            f"keras_attention runs on Keras' TensorFlow backend only. Got backend {wanted!r}: set "
            "KERAS_BACKEND=tensorflow (or unset it, and see ~/.keras/keras.json) before Python starts."
        )


require_tensorflow()
