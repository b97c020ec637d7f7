import gc
import os
import random

# Before TensorFlow is imported: no log chatter.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Most of the tests' time goes into compilers. XLA's own passes run, LLVM's do not (a quarter of the time of a compiled
# test; `make test-slow` runs with both), and tf2onnx raises what goes wrong in a pass, where it would otherwise copy
# the graph before each.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")

from pathlib import Path

import numpy as np
import pytest

# Its assertions say what they compared, as those of test files do.
pytest.register_assert_rewrite("contract")


def pytest_collection_finish():
    """What the imports made stays to the end: the collector need not look at it again, nor at every small graph."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


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
