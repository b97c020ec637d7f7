"""Loops over the formulas of the position schemes."""

import math

import numpy as np


def turned(x, place, base, rotary_dim, layout):
    """One vector [D], its pairs turned one by one as complex numbers."""
    out = np.array(x, "float64")
    half = rotary_dim // 2
    for i in range(half):
        a, b = (i, i + half) if layout == "half" else (2 * i, 2 * i + 1)
        z = complex(x[a], x[b]) * np.exp(1j * place / base ** (2 * i / rotary_dim))
        out[a], out[b] = z.real, z.imag
    return out


def slopes(count):
    """The authors' rule, as they tell it: a geometric series where the count is a power of two, else two of them."""
    if math.log2(count).is_integer():
        return [2 ** (-8 / count * (h + 1)) for h in range(count)]
    below = 2 ** math.floor(math.log2(count))
    return slopes(below) + slopes(2 * below)[0::2][: count - below]


def bucket(distance, num_buckets, max_distance, bidirectional):
    """By the bounds of the buckets, one after another: a bucket begins where the last one has grown by a factor."""
    start, behind = 0, -distance
    if bidirectional:
        num_buckets //= 2
        start, behind = (num_buckets, distance) if distance > 0 else (0, -distance)
    exact = num_buckets // 2
    if behind < exact:
        return start + max(behind, 0)
    factor = (max_distance / exact) ** (1 / (num_buckets - exact))
    found = exact
    while found + 1 < num_buckets and behind >= exact * factor ** (found + 1 - exact) - 1e-6:
        found += 1
    return start + found
