"""Every mechanism beside dense softmax attention and Keras' layer: time and peak memory over the length.

    pip install -e '.[bench]'              # once: matplotlib, for the plot
    python -m benchmarks.mechanisms --save

Whole self-attention layers of width 512 (8 heads of 64), batch 1, float32, not causal, inside tf.function. All that run
at one length run in turn; peak memory comes from a fresh process for each figure. What would take too long a call, and
dense forms whose scores would not fit, are left out and named. Figures are kept in --cells as they come: --resume goes
on there.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.attention import LONGEST_DENSE, layer_case
from benchmarks.cells import Cells
from benchmarks.growth import expected
from benchmarks.harness import ROOT, Forks, measure
from benchmarks.machine import this_machine
from benchmarks.mechanism_cases import BOTH, DENSE, FORWARD, KERAS, is_dense, layer_arguments
from benchmarks.mechanism_tables import curve_of, curves, memory_report, promise_report, time_report
from keras_attention import mechanisms

PLOT = ROOT / "benchmarks" / "mechanisms.png"
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
ROUNDS_SECONDS = 60  # of all rounds at one length
LONGEST_MEMORY_CALL = 60  # seconds of a call whose memory is measured


def main(argv=None):
    """Measures and prints; with --save writes the sections of RESULTS.md. Returns the exit code."""
    names = [DENSE, KERAS, *(name for name in mechanisms.names() if name != DENSE)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mechanisms", description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--mechanisms", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="at most; fewer, but three, where a length takes long")
    parser.add_argument("--longest-call", type=float, default=10.0, help="seconds; all but softmax is left out beyond")
    parser.add_argument("--causal", action="store_true", help="hide the future; mechanisms that cannot are left out")
    parser.add_argument("--no-memory", action="store_true", help="only times")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes")
    parser.add_argument("--cells", type=Path, default=Path("runs/benchmark-mechanisms.json"))
    parser.add_argument("--resume", action="store_true", help="use the figures in --cells")
    parser.add_argument("--save", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    options = parser.parse_args(argv)
    if min(options.lengths) < 1 or options.rounds < 1:
        parser.error("--lengths and --rounds must be at least 1")
    draw = None
    if not options.no_plot:
        try:
            from benchmarks.mechanism_plot import draw
        except ModuleNotFoundError as error:
            parser.error(f"the plot needs {error.name}: pip install -e '.[bench]', or give --no-plot")
    chosen = [DENSE, *(name for name in options.mechanisms if name != DENSE)]  # all ratios refer to it
    if options.causal:
        chosen = [name for name in chosen if name == KERAS or mechanisms.class_of(name).supports.causal]
    lengths = sorted(set(options.lengths))
    settings = {"rounds": options.rounds, "causal": options.causal, "longest_call": options.longest_call}
    try:
        cells = Cells(options.cells, settings, options.resume)
    except ValueError as error:
        parser.error(str(error))
    machine = this_machine()
    try:
        times = all_times(chosen, lengths, options, cells)
        memory = {} if options.no_memory else all_memory(chosen, lengths, options, cells, times)
    except KeyboardInterrupt:
        print(f"interrupted; go on with --resume (the figures so far are in {options.cells})", file=sys.stderr)
        return 130

    mode = ", causal" if options.causal else ""
    if lengths != LENGTHS:  # a section of its own: the one of all lengths stays
        mode += f", T = {', '.join(map(str, lengths))}"
    reports = [time_report(times, chosen, lengths, f"Every mechanism: time{mode}", machine)]
    if memory:
        reports.append(memory_report(memory, chosen, lengths, f"Every mechanism: peak memory{mode}", machine))
        reports.append(promise_report(times, memory, chosen, f"Every mechanism against dense softmax{mode}", machine))
    if draw is not None:
        draw(curves(times, chosen, "seconds"), curves(memory, chosen, "bytes"), options.plot)
        where = os.path.relpath(options.plot, ROOT / "benchmarks")
        reports[0].notes.append(f"![time and memory over the length]({where})")
    for report in reports:
        report.print()
        if options.save:
            report.save()
    return 0


def all_times(names, lengths, options, cells):
    """{what: {length: {"machine": operations a second, "cells": {name: cell}}}}; see `mechanism_tables` for cells."""
    found = {FORWARD: {}, BOTH: {}}
    for length in lengths:
        for what, at in found.items():
            before = {name: curve_of(at, name, "seconds") for name in names}
            name = f"time, {what}, {length}, {' '.join(names)}"
            at[length] = cells.once(name, times_at, names, what, length, options, before)
            print(f"time, {what}, T = {length}: done", flush=True)
    return found


def times_at(names, what, length, options, before):
    """The cells of one length; `before` holds the curves of the shorter ones, name -> length -> seconds."""
    found, work, failures, total = {}, {}, {}, 0.0
    for name in names:
        seconds = expected(before[name], length) or 0.0
        if is_dense(name) and length > LONGEST_DENSE:
            found[name] = {"left out": "dense"}
        elif seconds > options.longest_call and name != DENSE:  # without it there would be no ratios
            found[name] = {"left out": f"~{seconds:.0f} s"}
        else:
            total += seconds
            try:
                work[name] = layer_case(**layer_arguments(name, what, length, options.causal))
            except Exception as error:  # one cell fails, not the run
                failures[name] = error
    fitting = int(ROUNDS_SECONDS / total) if total else options.rounds
    rounds = max(min(3, options.rounds), min(options.rounds, fitting))
    # The first call of a long one costs as much as any other: once is enough.
    timings = measure(work, rounds=rounds, warmup=1 if total > ROUNDS_SECONDS / 6 else 2, failures=failures)
    found |= {name: {"seconds": timing.median, "spread": timing.spread} for name, timing in timings.items()}
    found |= {name: {"left out": f"failed: {_line(error)}"} for name, error in failures.items()}
    machine = next((timing.machine_rate for timing in timings.values()), None)
    return {"machine": machine, "cells": {name: found[name] for name in names}}


def all_memory(names, lengths, options, cells, times):
    """{what: {length: {"cells": {name: cell}}}}."""
    found = {FORWARD: {}, BOTH: {}}
    with Forks() as forks:
        for length in lengths:
            for what, at in found.items():
                at[length] = {"cells": {}}
                for name in names:
                    seconds = curve_of(times[what], name, "seconds")
                    arguments = (forks, name, what, length, options, seconds)
                    cell = cells.once(f"memory, {what}, {length}, {name}", memory_at, *arguments)
                    at[length]["cells"][name] = cell
            print(f"memory, T = {length}: done", flush=True)
    return found


def memory_at(forks, name, what, length, options, seconds):
    """One cell; `seconds` is the curve of its times."""
    if is_dense(name) and length > LONGEST_DENSE:
        return {"left out": "dense"}
    if (seconds.get(length) or expected(seconds, length) or 0.0) > LONGEST_MEMORY_CALL:
        return {"left out": f"over {LONGEST_MEMORY_CALL} s"}
    arguments = {**layer_arguments(name, what, length, options.causal), "traced": True}
    try:
        return {"bytes": forks.peak_memory("benchmarks.attention:layer_case", arguments).extra}
    except RuntimeError as error:
        return {"left out": f"failed: {_line(error)}"}


def _line(error):
    return " ".join(str(error).split())[:200]


if __name__ == "__main__":
    sys.exit(main())
