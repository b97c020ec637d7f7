"""The names of mechanisms."""

import keras

_REGISTRY = {}
# Those that choose among others: not listed as mechanisms of their own.
_UNLISTED = {}


def register(name, listed=True):
    """Class decorator: makes a mechanism known under `name` and to Keras' serialisation; `listed` in `names()`."""

    def decorate(cls):
        known = {**_REGISTRY, **_UNLISTED}.get(name, cls)
        # A module that is imported anew registers its own class once more.
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"A mechanism named {name!r} is registered already: {known.__module__}.{known.__qualname__}."
            )
        (_REGISTRY if listed else _UNLISTED)[name] = cls
        return keras.saving.register_keras_serializable("keras_attention")(cls)

    return decorate


def names():
    """The names of all registered ways to attend, in the order of registration; "auto" chooses among them."""
    return list(_REGISTRY)


def class_of(name):
    """The class registered under `name`, or a ValueError that lists the names."""
    known = {**_UNLISTED, **_REGISTRY}
    if name not in known:
        raise ValueError(f"Unknown mechanism {name!r}; known are {', '.join(known)}.")
    return known[name]


def name_of(cls):
    """The name under which a class is registered, or None."""
    return next((name for name, known in {**_REGISTRY, **_UNLISTED}.items() if known is cls), None)
