"""Optimizer, loss, metrics and precision of a training run."""

import platform
from contextlib import contextmanager

import keras
import tensorflow as tf

from keras_attention import __version__
from keras_attention.training.optimization.adam import FusedAdam
from keras_attention.training.optimization.losses import MaskedAccuracy, MaskedCrossentropy, TokenLoss
from keras_attention.training.optimization.schedules import WarmupInverseSqrt


def compile_model(model, options):
    """Compile a built model of tokens with masked loss and metrics, Adam, and what the options say of both.

    Args:
        model: built model whose output is logits [B, T, V].
        options: `learning_rate`, `warmup`, `cooldown`, `steps`, `label_smoothing`, `precision`, `jit_compile`.

    Returns:
        The metrics, "loss" first.
    """
    # Adam as in Vaswani et al., 2017, section 5.3.
    optimizer = FusedAdam(
        WarmupInverseSqrt(options.learning_rate, options.warmup, options.cooldown, options.steps),
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
    )
    optimizer = with_loss_scaling(optimizer, options.precision, model)
    metrics = [TokenLoss(options.label_smoothing), MaskedAccuracy()]
    model.compile(
        optimizer,
        loss=MaskedCrossentropy(options.label_smoothing),
        metrics=metrics,
        # Said explicitly: left alone, Keras compiles on its own where there is a GPU, one program for each batch shape.
        jit_compile=options.jit_compile,
    )
    # Before anything is restored, the optimizer's variables must exist.
    optimizer.build(model.trainable_variables)
    return metrics


def versions():
    """Version of what decides the numbers, by name."""
    return {
        "keras_attention": __version__,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
    }


def with_loss_scaling(optimizer, precision, model=None):
    """The optimizer, scaling the loss where gradients in half precision would vanish without it.

    Keras does this on its own only where the model itself, and not just its layers, has the policy mixed_float16; said
    here explicitly, it does not depend on that. bfloat16 has the range of float32 and needs no scaling.

    Args:
        optimizer: Keras optimizer.
        precision: name of the dtype policy that the layers compute in.
        model: built model; one layer of it with a policy of its own that computes in float16 is enough.
    """
    layers = [] if model is None else model._flatten_layers()
    if precision in ("mixed_float16", "float16") or any(layer.compute_dtype == "float16" for layer in layers):
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


@contextmanager
def dtype_policy(name):
    """Keras' global dtype policy, for a while."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
