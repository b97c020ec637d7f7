"""Configs without `get_config` by hand: what a constructor was given, kept under the arguments' own names."""

import functools
import inspect

import keras
import numpy as np


class Recorded:
    """Mixin before a Keras layer or model: `get_config` gives Keras' own part and every argument of the constructor.

    Recorded are the named arguments of each class on the way down, defaults included; what comes in as `**kwargs` is
    the base's affair, and Keras' in the end (`name`, `dtype`, `trainable`). A subclass that gives its base other values
    than it was given itself (RetNet's width of the feed-forward layers) records those of the base, and a subclass that
    takes other arguments than its base needs a `get_config` of its own, as in all of Keras.

    Objects with a config (mechanisms, position schemes, towers) are recorded as that config, so that nothing is tracked
    as a part; activations as Keras resolves them; tuples as lists. Initializers are read from the attribute of the
    argument's name. Where the config has to hold something else than what was given, the constructor says
    `self._record(name=value)`. What has no config (a function that Keras would load as another one) can be used all the
    same: `get_config` raises what was raised when it was recorded.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)

    def _record(self, **arguments):
        # Not by `setattr`, which Keras tracks, and which wants the layer to be initialized.
        recorded = vars(self).setdefault("_recorded", {})
        for name, value in arguments.items():
            try:
                recorded[name] = _plain(name, value)
            except (TypeError, ValueError) as error:
                recorded[name] = error.with_traceback(None)  # which would keep what the constructor held

    def get_config(self):
        config = {**super().get_config(), **vars(self).get("_recorded", {})}
        for value in config.values():
            if isinstance(value, Exception):
                raise value
        for name in config:
            if name.endswith("initializer"):  # where None is the default, it stands for one of the layer's own
                config[name] = keras.initializers.serialize(getattr(self, name))
        return config


def _recording(init):
    signature = inspect.signature(init)
    _, *names = (name for name, parameter in signature.parameters.items() if parameter.kind != parameter.VAR_KEYWORD)

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # says it by the constructor's own name
            raise
        given.apply_defaults()
        self._record(**{name: given.arguments[name] for name in names})
        init(self, *args, **kwargs)

    # Keras reads the arguments' names without looking through wrappers.
    __init__.__signature__ = signature
    return __init__


def _plain(name, value):
    """An argument as a config holds it."""
    if name == "activation":
        return keras.activations.serialize(keras.activations.get(value))
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(name, part) for part in value] if isinstance(value, list | tuple) else value
