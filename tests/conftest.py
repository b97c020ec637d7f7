import os

# Before TensorFlow is imported: no log chatter.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(20260711)


@pytest.fixture
def data_dir():
    """The folder of real corpora; tests that need it are skipped, saying so, where it is not set."""
    folder = os.environ.get("KERAS_ATTENTION_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("KERAS_ATTENTION_DATA is not set: needs the real corpora")
    return Path(folder)


@pytest.fixture(autouse=True)
def float32_policy():
    """A test that changes Keras' global dtype policy cannot reach the next one."""
    import keras

    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)
