"""The tables of `benchmarks.mechanisms`, from measured cells.

`found` is {what: {length: {"cells": {name: cell}, ...}}}; a cell holds "seconds" (and "spread") or "bytes", or under
"left out" the reason why it was not measured.
"""

from benchmarks.attention import DEPTH, HEADS, LONGEST_DENSE
from benchmarks.growth import crossover_text, growth_exponent
from benchmarks.harness import Report, duration, size
from benchmarks.mechanism_cases import BOTH, DENSE, FORWARD, KERAS, PROMISED, PROMISED_LENGTH, shown_options


def curve_of(by_length, name, figure):
    """length -> figure of one mechanism, where it was measured and is not 0, which has no logarithm."""
    found = {length: at["cells"].get(name, {}).get(figure) for length, at in by_length.items()}
    return {length: value for length, value in found.items() if value}


def curves(found, names, figure):
    """{what: {name: {length: figure}}}, for the plot."""
    return {what: {name: curve_of(by_length, name, figure) for name in names} for what, by_length in found.items()}


def time_report(times, names, lengths, title, machine):
    """One row for each mechanism forward and one with the gradient: its time at each length, growth and crossover.

    `machine` is `this_machine()` before the first measurement.
    """
    report = Report(title, machine=machine)
    _add_rows(report, times, names, lengths, "seconds", duration)
    for what, by_length in times.items():
        rates = {f"T={n}": f"{by_length[n]['machine'] / 1e9:.0f}" for n in lengths if by_length[n]["machine"]}
        report.add(mechanism="matrix product, GFLOP/s", what=what, **rates)
    spreads = [cell["spread"] for _, _, _, cell in _cells(times) if "spread" in cell]
    report.notes.append(
        "Medians of calls in turn; the largest spread (half the distance of the quartiles) is "
        f"±{max(spreads, default=0.0):.0%}. ~N s in place of a time: a call would take that long, and is left out."
    )
    _explain(report, times)
    return report


def memory_report(memory, names, lengths, title, machine):
    """The same for peak memory."""
    report = Report(title, machine=machine)
    _add_rows(report, memory, names, lengths, "bytes", size)
    report.notes.append(
        "Peak beyond inputs, weights and results, of the first call in a fresh process; the graph is there before, "
        "what XLA compiles is not. At short lengths the runtime's own megabytes (threads, kernels) are most of it, and "
        "growth and crossover say little."
    )
    _explain(report, memory)
    return report


def promise_report(times, memory, names, title, machine):
    """Whether those that must be cheaper than dense softmax at 8192 are: yes or no, and how many times."""
    report = Report(title, machine=machine)
    measured = curve_of(times[FORWARD], DENSE, "seconds")
    length = PROMISED_LENGTH if PROMISED_LENGTH in measured else max(measured)
    broken = []
    for name in (name for name in names if name not in (DENSE, KERAS)):
        row = {"mechanism": name, "options": shown_options(name), "must": "yes" if name in PROMISED else "no"}
        for kind, found, figure in (("time", times, "seconds"), ("memory", memory, "bytes")):
            for what in (FORWARD, BOTH):
                at = found[what][length]["cells"]
                dense, own = at[DENSE].get(figure), at[name].get(figure)
                ratio = dense / own if dense and own else None
                heading = f"{kind}, {what}"
                row[heading] = "no figure" if ratio is None else f"{'yes' if ratio > 1 else 'no'}, {ratio:.1f}x"
                if name in PROMISED and (ratio is None or ratio <= 1):
                    broken.append(f"{name} ({heading})")
        report.add(**row)
    report.notes.append(f"Cheaper than dense softmax at T = {length}, and how many times less time or memory it takes.")
    report.notes.append(
        f"Not cheaper though it must be, or without a figure: {', '.join(broken)}."
        if broken
        else "Every one that must be cheaper is."
    )
    return report


def _add_rows(report, found, names, lengths, figure, text):
    for what, by_length in found.items():
        dense = curve_of(by_length, DENSE, figure)
        for name in names:
            curve = curve_of(by_length, name, figure)
            exponent = growth_exponent(curve)
            row = {"mechanism": name, "what": what, "options": shown_options(name)}
            for length in lengths:
                row[f"T={length}"] = _cell_text(by_length[length]["cells"][name], figure, text, length)
            row["growth"] = "" if exponent is None else f"T^{exponent:.2f}"
            row["cheaper than softmax from T"] = "" if name == DENSE else crossover_text(curve, dense)
            report.add(**row)


def _cell_text(cell, figure, text, length):
    if figure in cell:
        return text(cell[figure])
    why = cell["left out"]
    if why == "dense":
        return f"scores {size(4 * HEADS * length**2)}" if figure == "bytes" else "not run"
    return "failed" if why.startswith("failed") else why


def _explain(report, found):
    report.notes.append(
        f"MultiHeadAttention({HEADS * DEPTH}, {HEADS}, mechanism=...), self-attention, batch 1, float32; gradients to "
        f"all weights and the input. {DENSE} is the dense form, {KERAS} is keras.layers.MultiHeadAttention({HEADS}, "
        f"{DEPTH}). Growth is fitted on the upper half of the lengths. ~ before a crossover: dense softmax is extended "
        "beyond its last length as it grows."
    )
    left_out = [(name, what, length, cell) for name, what, length, cell in _cells(found) if "left out" in cell]
    if any(cell["left out"] == "dense" for *_, cell in left_out):
        report.notes.append(
            f"Forms that hold all scores are not run beyond T = {LONGEST_DENSE}: one score tensor takes {HEADS} T² x 4 "
            "bytes."
        )
    for name, what, length, cell in left_out:
        if cell["left out"].startswith("failed"):
            report.notes.append(f"{name}, {what}, T = {length} {cell['left out']}")


def _cells(found):
    """(name, what, length, cell) of all cells."""
    for what, by_length in found.items():
        for length, at in by_length.items():
            for name, cell in at["cells"].items():
                yield name, what, length, cell
