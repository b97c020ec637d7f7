"""What a curve over sequence lengths says: how it grows, where it crosses another, what comes next."""

import math


def growth_exponent(curve):
    """The slope of log value over log length on the upper half of the lengths: 1 = linear, 2 = quadratic.

    Args:
        curve: length -> positive value.

    Returns:
        float of the least-squares line through the upper half (at least two lengths); None for fewer than two.
    """
    lengths = sorted(curve)
    upper = lengths[min(len(lengths) // 2, len(lengths) - 2) :] if len(lengths) >= 2 else []
    if not upper:
        return None
    xs, ys = [math.log(n) for n in upper], [math.log(curve[n]) for n in upper]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys)) / spread


def extended(curve, lengths):
    """A curve with those of `lengths` that lie beyond its end added, as its growth exponent says where it has one."""
    exponent = growth_exponent(curve)
    if exponent is None:
        return dict(curve)
    last = max(curve)
    return {**curve, **{n: curve[last] * (n / last) ** exponent for n in lengths if n > last}}


def expected(curve, length):
    """What a curve will be at a longer length, by its last two points and linear at least; None without points."""
    if not curve:
        return None
    last = max(curve)
    steepness = growth_exponent({n: curve[n] for n in sorted(curve)[-2:]})
    return curve[last] * (length / last) ** max(1.0, 1.0 if steepness is None else steepness)


def crossover(curve, reference):
    """From which length on a curve lies below a reference.

    Between two lengths, the logarithms are taken as straight lines over the logarithm of the length. Where the curves
    cross more than once, the last crossing counts.

    Args:
        curve, reference: length -> positive value; compared at the lengths that both have.

    Returns:
        A length (float) between two that were measured; 0 where the curve lies below at all of them; infinity where it
        does not at the last; None where they have no length in common.
    """
    lengths = sorted(set(curve) & set(reference))
    if not lengths:
        return None
    gaps = {n: math.log(curve[n] / reference[n]) for n in lengths}
    if gaps[lengths[-1]] >= 0:
        return math.inf
    above = [n for n in lengths if gaps[n] >= 0]
    if not above:
        return 0.0
    low = above[-1]
    high = lengths[lengths.index(low) + 1]
    share = gaps[low] / (gaps[low] - gaps[high])
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def crossover_text(curve, reference):
    """`crossover` in words; a reference that ends before the curve is extended as it grows, and ~ says so."""
    measured = max(reference, default=0)
    longer = extended(reference, curve)
    found = crossover(curve, longer)
    if found is None:
        return ""
    common = sorted(set(curve) & set(longer))
    if found == 0:
        return f"below {common[0]}"
    if math.isinf(found):
        return f"above {common[-1]}"
    return f"{'~' if found > measured else ''}{found:.0f}"
