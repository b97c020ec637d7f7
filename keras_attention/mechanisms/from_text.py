"""A mechanism with its options in one word: `local:radius=3`."""

import inspect
import json
import re

from keras_attention.mechanisms.registry import class_of

# A comma parts two options only where a key follows: values such as [4,4] hold commas too.
_BETWEEN = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")


def from_text(text):
    """The mechanism that `"name"` or `"name:key=value,key=value"` describes.

    Values are read as JSON (`3`, `0.5`, `true`, `null`, `[4,4]`); what is no JSON is a string (`cache=rolling`).

    Args:
        text: str; the keys are those of the class's constructor.

    Returns:
        A new `Mechanism`.

    Raises:
        ValueError: an unknown name, an option that the class does not have or is given twice or left out though it must
            be given, text without the form above, or a value that the class refuses.

    Example:
        >>> from_text("bigbird:block_size=16,seed=3").block_size
        16
    """
    name, colon, rest = text.partition(":")
    cls = class_of(name)
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    known = f"It has {', '.join(parameters)}." if parameters else "It has none."
    options = {}
    for part in _BETWEEN.split(rest) if colon else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ValueError(f"A mechanism's options are written NAME:KEY=VALUE,KEY=VALUE. Got {text!r}. {known}")
        if key not in parameters:
            raise ValueError(f"mechanism {name!r} has no option {key!r}. {known}")
        if key in options:
            raise ValueError(f"mechanism {name!r} is given {key} twice in {text!r}; give it once.")
        options[key] = _value(value)
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise ValueError(
                f"mechanism {name!r} needs its option {key}: give {cls.__name__}({key}=...), or {name}:{key}=VALUE as "
                f"text. Got {text!r}."
            )
    return cls(**options)


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text
