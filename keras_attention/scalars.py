"""What counts as a number where a user, a file or a program gives one. A truth value is none."""


def is_whole(value, least, most=None):
    """Whether `value` is an integer, NumPy's included, of at least `least`, and at most `most` where that is given."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    return least <= value.__index__() and (most is None or value.__index__() <= most)


def is_number(value):
    """Whether `value` is a real Python number; NaN and the infinities are."""
    return isinstance(value, int | float) and not isinstance(value, bool)
