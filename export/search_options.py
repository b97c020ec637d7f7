"""Options of the exported search."""

import math

from keras_attention.errors import UsageError
from keras_attention.generation.arguments import LENGTH_PENALTY
from keras_attention.scalars import is_whole

BEAMS = 1


def search_options(beams, length_penalty):
    """dict of "beams" and "length_penalty", with their defaults for None; raises `UsageError` for impossible values."""
    beams = BEAMS if beams is None else beams
    length_penalty = LENGTH_PENALTY if length_penalty is None else length_penalty
    if not is_whole(beams, 1):
        raise UsageError(f"beams must be a whole number of at least 1. Got {beams!r}.")
    if not math.isfinite(length_penalty):
        raise UsageError(f"length_penalty must be a finite number. Got {length_penalty}.")
    return {"beams": int(beams), "length_penalty": float(length_penalty)}
