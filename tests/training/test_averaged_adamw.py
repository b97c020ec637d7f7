"""The moving average of the weights against a loop: it must not hold the random start (case 98)."""

import keras
import numpy as np
import pytest

from keras_attention.training.optimization.averaged_adamw import AveragedAdamW
from keras_attention.training.optimization.weight_averages import moving_average

STEPS = 23


def trained(rng, optimizer, jit_compile):
    """A small model after `STEPS` updates, and its weights after each."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, loss="mse", jit_compile=jit_compile)
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    weights = []
    for _ in range(STEPS):
        model.train_on_batch(x, y)
        weights.append([np.array(v, np.float64) for v in model.trainable_variables])
    return model, weights


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled loss"])
@pytest.mark.parametrize(("largest", "jit_compile"), [(0.99, False), (0.6, True)])
def test_the_average_against_a_loop(rng, largest, jit_compile, scaled):
    inner = AveragedAdamW(0.1, use_ema=True, ema_momentum=largest)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
    model, weights = trained(rng, optimizer, jit_compile)
    average, of_the_first = None, 1.0
    for update, now in enumerate(weights):
        momentum = min(largest, (1 + update) / (10 + update)) if update else 0.0
        average = now if average is None else [momentum * a + (1 - momentum) * b for a, b in zip(average, now)]
        of_the_first *= momentum if update else 1.0
    assert of_the_first < 1e-4 < 0.99 ** (STEPS - 1)
    with moving_average(model):
        for variable, want in zip(model.trainable_variables, average, strict=True):
            np.testing.assert_allclose(variable, want, rtol=1e-5)
    for variable, want in zip(model.trainable_variables, weights[-1], strict=True):
        np.testing.assert_array_equal(variable, want)


def test_checkpoints_of_keras_own_average_fit():
    """The same variables in the same order as AdamW: runs of earlier builds go on."""
    variables = [keras.Variable(np.zeros((2, 3)), name="x"), keras.Variable(np.zeros(4), name="y")]
    ours, keras_own = (kind(use_ema=True) for kind in (AveragedAdamW, keras.optimizers.AdamW))
    for optimizer in (ours, keras_own):
        optimizer.build(variables)
    shapes = [[(v.name, v.shape) for v in optimizer.variables] for optimizer in (ours, keras_own)]
    assert shapes[0] == shapes[1]
    assert AveragedAdamW.from_config(ours.get_config()).get_config()["ema_momentum"] == 0.99
