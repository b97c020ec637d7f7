"""The one Keras backend that this package runs on; importing this module checks what the environment asks for."""

import os


def require_tensorflow(wanted):
    """Raises ImportError where `wanted` is another backend, before Keras fails to import what that one needs."""
    if wanted != "tensorflow":
        raise ImportError(
            f"keras_attention runs on Keras' TensorFlow backend only. Got backend {wanted!r}: set "
            "KERAS_BACKEND=tensorflow (or unset it, and see ~/.keras/keras.json) before Python starts."
        )


require_tensorflow(os.environ.get("KERAS_BACKEND") or "tensorflow")
