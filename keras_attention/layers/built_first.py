"""Building before the public methods that do not go through `__call__`."""

import functools


def built_first(method):
    """Decorator of a method of a layer or model that uses weights and may be called before the first call.

    Keras builds a layer in `__call__` alone. Without this, such a method would build the parts one by one, each under a
    name of its own, and the layer could not be built any more. `build` is given the shape of the first argument.
    """

    @functools.wraps(method)
    def building(self, *args, **kwargs):
        if not self.built:
            first = next(iter((*args, *kwargs.values())), None)
            self.build(getattr(first, "shape", None))
        return method(self, *args, **kwargs)

    return building
