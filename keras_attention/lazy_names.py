"""Names that a package hands on from a module that is imported only when the name is asked for."""

import importlib
import sys


def lazy_names(package, *submodules, **modules):
    """`__getattr__` and `__dir__` (PEP 562) of a package whose names live in modules that are imported on first use.

    Args:
        package: `__name__` of the package.
        *submodules: names of its own modules and packages, which are imported on first use themselves.
        **modules: name -> the full name of the module that holds it.

    Returns:
        The two functions, for the package to keep under these names.

    Example:
        >>> __getattr__, __dir__ = lazy_names(__name__, Translator="keras_attention.inference.translator")
    """

    def __getattr__(name):
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # asked for once
        return value

    def __dir__():
        return sorted({*vars(sys.modules[package]), *submodules, *modules})

    return __getattr__, __dir__
