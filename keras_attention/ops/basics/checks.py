"""Checks of arguments: what was expected, what came, what to do."""

import tensorflow as tf

from keras_attention.scalars import is_number, is_whole


def positive_int(name, value):
    """Returns `value` as an int, or raises where it is not an integer of at least 1."""
    return _whole(name, value, 1)


def nonnegative_int(name, value):
    """Returns `value` as an int, or raises where it is not an integer of at least 0."""
    return _whole(name, value, 0)


def _whole(name, value, least):
    if not is_whole(value, least):
        raise ValueError(f"{name} must be an integer of at least {least}. Got {name}={value!r}.")
    return int(value)


def rate(name, value):
    """Returns a dropout rate as a float, or raises where it is outside [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number of at least 0 and below 1. Got {name}={value!r}.")
    return float(value)


def positive_number(name, value):
    """Returns `value` as a float, or raises where it is not above 0."""
    if not is_number(value) or not value > 0:
        raise ValueError(f"{name} must be a number above 0. Got {name}={value!r}.")
    return float(value)


def one_of(name, value, choices):
    """Returns `value`, or raises with the list of choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}. Got {name}={value!r}.")
    return value


def divisible(name, value, by_name, by, suggestion=None):
    """Raises where `value` is not a multiple of `by`, naming the divisors that would do."""
    if value % by:
        divisors = [d for d in range(1, value + 1) if value % d == 0]
        near = sorted(sorted(divisors, key=lambda d: abs(d - by))[:4])
        hint = suggestion or f"use {by_name} = {', '.join(map(str, near[:-1]))} or {near[-1]}"
        raise ValueError(
            f"{name} must be divisible by {by_name}. Got {name}={value}, {by_name}={by}; {hint}."
            if len(near) > 1
            else f"{name} must be divisible by {by_name}. Got {name}={value}, {by_name}={by}."
        )


def is_concrete(tensor):
    """Whether the numbers in `tensor` can be read now (eager), rather than only while a graph runs."""
    return isinstance(tensor, tf.__internal__.EagerTensor)


def sizes(tensor):
    """The shape of `tensor` as a list: Python ints where the size is static, scalar tensors where it is not."""
    static = tensor.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(tensor)
    return [dynamic[i] if n is None else n for i, n in enumerate(static)]
