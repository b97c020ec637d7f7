"""Precision of a training run: loss scaling where half precision needs it, and nowhere else."""

import keras
import numpy as np
import pytest

from keras_attention.training.optimization.compiling import compile_model, dtype_policy, versions, with_loss_scaling
from keras_attention.training.translation.options import TranslationOptions

V = 11


def tiny_gradient(optimizer, layer_dtype=None):
    """Kernel 1, input 1, loss 1e-9 * y, learning rate 1e4: the update is 1e-5, the gradient vanishes in float16."""
    inputs = keras.Input((1,))
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype=layer_dtype)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, loss=lambda y_true, y_pred: keras.ops.mean(y_pred) * 1e-9, jit_compile=False)
    model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)
    return float(model.layers[-1].kernel[0, 0])


@pytest.mark.parametrize("said_by", ["global policy", "layer's policy"])
def test_gradients_too_small_for_half_precision_arrive(said_by):
    optimizer = with_loss_scaling(keras.optimizers.SGD(1e4), "mixed_float16")
    if said_by == "global policy":
        with dtype_policy("mixed_float16"):
            kernel = tiny_gradient(optimizer)
    else:
        kernel = tiny_gradient(optimizer, layer_dtype="mixed_float16")
    assert kernel == pytest.approx(0.99999, abs=1e-6)


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_one_layer_in_float16_is_enough_for_scaling(name):
    inputs = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Dense(5, dtype=name)(keras.layers.Embedding(V, 6)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(V)(hidden))
    compile_model(model, TranslationOptions(out="unused", precision="float32"))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (name == "mixed_float16")


def test_without_scaling_they_vanish():
    """The fault itself, so that the test above is known to see it."""
    assert tiny_gradient(keras.optimizers.SGD(1e4), layer_dtype="mixed_float16") == 1.0


@pytest.mark.parametrize("precision", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_compile_for_each_precision(rng, precision):
    options = TranslationOptions(out="unused", precision=precision, learning_rate=0.1, warmup=2, label_smoothing=0.2)
    before = keras.config.dtype_policy().name
    with dtype_policy(precision):
        inputs = keras.Input((None,), dtype="int32")
        model = keras.Model(inputs, keras.layers.Dense(V)(keras.layers.Embedding(V, 6)(inputs)))
        metrics = compile_model(model, options)
    assert keras.config.dtype_policy().name == before
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (precision == "mixed_float16")
    assert len(model.optimizer.variables) >= 2 * len(model.trainable_variables)  # there before the first step
    assert model.jit_compile is False
    ids = rng.integers(1, V, (6, 5)).astype("int32")
    history = model.fit(ids, (ids + 3) % V, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] and np.isfinite(history["loss"]).all()
    assert [metric.name for metric in metrics] == ["loss", "accuracy"]
    assert all(variable.dtype == "float32" for variable in model.trainable_variables)
    assert float(metrics[0].count) == np.count_nonzero((ids + 3) % V)


def test_versions_are_those_that_run():
    assert versions()["keras"] == keras.__version__
