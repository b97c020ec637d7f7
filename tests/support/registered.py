"""Everything that the package registers with Keras, by kind."""

import importlib
import pkgutil

import keras

import keras_attention
from keras_attention.mechanisms.base import Mechanism

# In this order: models and mechanisms are layers too. The batteries of layers, models and mechanisms take three of
# them; the others have tests where they stand.
KINDS = {
    "model": keras.Model,
    "mechanism": Mechanism,
    "layer": keras.layers.Layer,
    "optimizer": keras.optimizers.Optimizer,
    "schedule": keras.optimizers.schedules.LearningRateSchedule,
    "loss": keras.losses.Loss,
    "metric": keras.metrics.Metric,
}


def registered(kind):
    """The classes of one kind, "function" for functions; a KeyError names what is of no kind that is known."""
    for room in ("layers", "mechanisms", "models", "ops", "training"):
        package = importlib.import_module(f"keras_attention.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found = {}
    for name, thing in keras.saving.get_custom_objects().items():
        # Tests register classes of their own.
        if name.startswith("keras_attention>") and thing.__module__.startswith(f"{keras_attention.__name__}."):
            found.setdefault(_kind(name, thing), set()).add(thing)
    return found[kind]


def _kind(name, thing):
    if not isinstance(thing, type):
        return "function"
    for kind, base in KINDS.items():
        if issubclass(thing, base):
            return kind
    raise KeyError(f"{name} is registered and of no known kind: add the kind to registered.py, and tests for it.")
