import os
import random

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
def same_start():
    """Each test draws the same weights whatever ran before it, and Keras' global dtype policy ends with the test."""
    import keras

    before = keras.config.dtype_policy()
    # Where Keras takes the seeds that nobody gives; tf.random.set_seed would also throw compiled kernels away.
    random.seed(20260711)
    yield
    keras.config.set_dtype_policy(before)
