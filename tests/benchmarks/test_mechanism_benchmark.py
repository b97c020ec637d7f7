"""The comparison of mechanisms: what it makes of measured figures, and which layers it builds."""

import argparse
import json
import math

import pytest

from keras_attention import mechanisms

pytest.importorskip("benchmarks", reason="benchmarks are not part of the wheel")
from benchmarks import growth, harness, mechanism_cases, mechanism_tables
from benchmarks import mechanisms as benchmark
from benchmarks.cells import Cells
from benchmarks.machine import Machine

pytestmark = pytest.mark.benchmarks

MACHINE = Machine("a processor", 2, "", 0.1, "versions")


# --- growth ---------------------------------------------------------------------------------------------------------


def test_the_exponent_is_that_of_the_upper_half():
    curve = {n: 5.0 * n**1.5 for n in (100, 250, 600, 1300, 2000)} | {100: 1e6, 250: 1e6}
    assert growth.growth_exponent(curve) == pytest.approx(1.5)  # of 600, 1300 and 2000
    # Three points off a line: slope of least squares at logarithms 0, 1, 2 of values 0, 2, 1.
    assert growth.growth_exponent({1: 9.9, 2: 9.9, math.e**2: 1.0, math.e**3: math.e**2, math.e**4: math.e}) == (
        pytest.approx(0.5)
    )
    assert growth.growth_exponent({4: 2.0, 16: 8.0}) == pytest.approx(1.0)
    assert growth.growth_exponent({4: 2.0}) is None and growth.growth_exponent({}) is None


def test_what_is_expected_of_a_longer_length():
    assert growth.expected({}, 64) is None
    assert growth.expected({8: 2.0}, 32) == pytest.approx(8.0)  # linear, for want of more
    assert growth.expected({2: 99.0, 4: 1.0, 8: 4.0}, 16) == pytest.approx(16.0)  # by the last two
    assert growth.expected({4: 1.0, 8: 1.0}, 16) == pytest.approx(2.0)  # never less than linear
    assert growth.extended({4: 1.0, 8: 8.0}, [4, 16, 32]) == pytest.approx({4: 1.0, 8: 8.0, 16: 64.0, 32: 512.0})
    assert growth.extended({4: 1.0}, [8]) == {4: 1.0}


@pytest.mark.parametrize(
    ("curve", "reference", "number", "text"),
    [
        ({512: 1.0, 1024: 2.0}, {512: 2.0, 1024: 8.0}, 0.0, "below 512"),
        ({512: 4.0, 1024: 9.0}, {512: 2.0, 1024: 8.0}, math.inf, "above 1024"),
        # 64 n against n^2 / 16: they meet at 1024 exactly, between two measured lengths.
        ({n: 64.0 * n for n in (256, 4096)}, {n: n * n / 16 for n in (256, 4096)}, 1024.0, "1024"),
        # Dearer, cheaper, dearer, cheaper: the last crossing counts.
        ({1: 4.0, 2: 1.0, 4: 4.0, 16: 4.0}, {1: 2.0, 2: 2.0, 4: 2.0, 16: 8.0}, 8.0, "8"),
        # The reference ends: it goes on as it grew (n^2), and ~ says so.
        ({n: 64.0 * n for n in (64, 256, 4096)}, {n: n * n / 16 for n in (64, 256)}, math.inf, "~1024"),
        ({16: 1.0}, {32: 1.0}, None, ""),
    ],
    ids=["always", "never", "once", "twice", "extended", "nothing in common"],
)
def test_the_crossover(curve, reference, number, text):
    assert growth.crossover(curve, reference) == (number if number is None else pytest.approx(number))
    assert growth.crossover_text(curve, reference) == text


# --- figures on disk ------------------------------------------------------------------------------------------------


def test_figures_are_taken_once_and_survive(tmp_path):
    path, calls = tmp_path / "runs" / "cells.json", []

    def figure(value):
        calls.append(value)
        return {"seconds": value, "lengths": (1, 2)}

    cells = Cells(path, {"rounds": 3}, resume=False)
    assert cells.once("a", figure, 1.5) == {"seconds": 1.5, "lengths": [1, 2]}
    assert cells.once("a", figure, 9.0)["seconds"] == 1.5 and calls == [1.5]
    again = Cells(path, {"rounds": 3}, resume=True)
    assert again.once("a", figure, 9.0)["seconds"] == 1.5 and calls == [1.5]
    assert Cells(path, {"rounds": 3}, resume=False).once("a", figure, 2.0)["seconds"] == 2.0
    with pytest.raises(ValueError, match=r"figures of other settings.*Leave --resume out"):
        Cells(path, {"rounds": 4}, resume=True)
    assert [p.name for p in path.parent.iterdir()] == ["cells.json"]


# --- harness --------------------------------------------------------------------------------------------------------


def test_a_candidate_that_fails_leaves_the_others():
    def broken():
        raise RuntimeError("no memory")

    failures = {}
    work = {"a": broken, "b": lambda: harness.Seconds(3.0), "c": lambda: harness.Seconds(1.0)}
    timings = harness.measure(work, rounds=2, rate_size=8, failures=failures)
    assert list(timings) == ["b", "c"] and timings["c"].ratio == 3.0
    assert str(failures["a"]) == "no memory"
    with pytest.raises(RuntimeError, match="no memory"):
        harness.measure(work, rounds=2, rate_size=8)
    assert harness.measure({}, rate_size=8, failures={}) == {}


def memory_case(megabytes):
    """Called in the fork: a buffer that the work needs and hands back a part of."""
    import numpy as np

    if megabytes == 0:
        raise ValueError("nothing to do")
    if megabytes < 0:
        import os

        os.abort()
    return lambda: np.ones(megabytes * 1_000_000, "uint8")[:1_000_000].copy()


def test_memory_is_taken_in_a_fork_of_its_own():
    with harness.Forks() as forks:
        target = "tests.benchmarks.test_mechanism_benchmark:memory_case"
        for megabytes in (150, 30):  # the second does not see what the first has left
            found = forks.peak_memory(target, {"megabytes": megabytes})
            assert found.results == 1_000_000
            assert megabytes - 2 < found.extra / 1e6 < megabytes + 8
        with pytest.raises(RuntimeError, match="memory_case failed: ValueError: nothing to do"):
            forks.peak_memory(target, {"megabytes": 0})
        with pytest.raises(RuntimeError, match="memory_case failed: the process ended with status -6"):
            forks.peak_memory(target, {"megabytes": -1})


# --- cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [100, 512, 2048])
def test_every_mechanism_has_options_for_every_length(length):
    for name in mechanisms.names():
        mechanism = mechanisms.from_text(mechanism_cases.text_of(name, length))
        assert mechanism.registered_name == name
        assert "{" not in mechanism_cases.shown_options(name)
    axial = mechanisms.from_text(mechanism_cases.text_of("axial", length))
    assert math.prod(axial.shape) == length and axial.shape == {100: (10, 10), 512: (16, 32), 2048: (32, 64)}[length]
    assert set(mechanism_cases.PROMISED) <= set(mechanisms.names())
    assert [n for n in mechanisms.names() if mechanism_cases.is_dense(n)] == ["softmax", "relu"]


def test_a_length_is_measured_without_what_is_too_long_or_fails(monkeypatch):
    """`measure` and the layers are stand-ins: what they are asked for is looked at."""
    asked = []

    def layer_case(**arguments):
        if arguments.get("mechanism", "").startswith("lsh"):
            raise ValueError("no buckets\nhere")
        asked.append((arguments["name"], arguments.get("mechanism"), arguments["length"], arguments["backward"]))
        return lambda: None

    def measure(work, *, rounds, warmup, failures):
        asked.append((list(work), rounds, warmup))
        return {name: harness.Timing(name, 1.0, (2.0, 2.0), 1.0, None, 5e9) for name in work}

    monkeypatch.setattr(benchmark, "layer_case", layer_case)
    monkeypatch.setattr(benchmark, "measure", measure)
    options = argparse.Namespace(rounds=5, longest_call=10.0, causal=False)
    names = ["softmax", "keras.layers", "local", "lsh", "linear"]
    before = {name: {4096: 5.0, 8192: 10.0} for name in names} | {"linear": {4096: 6.0, 8192: 4.0}}
    found = benchmark.times_at(names, mechanism_cases.BOTH, 16384, options, before)
    assert found["cells"] == {
        "softmax": {"left out": "dense"},
        "keras.layers": {"left out": "dense"},
        "local": {"left out": "~20 s"},
        "lsh": {"left out": "~20 s"},
        "linear": {"seconds": 2.0, "spread": 0.0},
    }
    assert found["machine"] == 5e9
    assert asked == [("ours", "linear", 16384, True), (["linear"], 5, 2)]
    asked.clear()
    before = {name: {4096: 6.0} for name in names}  # dense softmax is measured all the same: ratios refer to it
    found = benchmark.times_at(names, mechanism_cases.BOTH, 8192, options, before)
    assert [name for name in names if "seconds" in found["cells"][name]] == ["softmax"]
    before = {name: {128: 5.0} for name in names}
    found = benchmark.times_at(names, mechanism_cases.FORWARD, 256, options, before)
    assert found["cells"]["lsh"] == {"left out": "failed: no buckets here"}
    assert asked[-1] == (["softmax", "keras.layers", "local", "linear"], 3, 1)  # 50 seconds a round: fewer of them


# --- tables ---------------------------------------------------------------------------------------------------------


def cells_of(figure, by_name, lengths, **others):
    """{length: {"cells": ...}} from name -> list of figures (None or a text: left out)."""
    found = {}
    for index, length in enumerate(lengths):
        row = {name: figures[index] for name, figures in by_name.items()}
        found[length] = {"cells": {n: {"left out": x} if isinstance(x, str) else {figure: x} for n, x in row.items()}}
        found[length].update(others)
    return found


NAMES = ["softmax", "local", "lsh"]
LENGTHS = [4096, 8192, 16384]
TIMES = {
    "forward": cells_of(
        "seconds",
        {"softmax": [0.5, 2.0, "dense"], "local": [0.25, 0.5, 1.0], "lsh": [1.0, 3.0, 4.0]},
        LENGTHS,
        machine=2e9,
    ),
    "forward + gradient": cells_of(
        "seconds",
        {"softmax": [1.0, 4.0, "dense"], "local": [2.0, 5.0, "~11 s"], "lsh": [4.0, "failed: no buckets", 8.0]},
        LENGTHS,
        machine=3e9,
    ),
}
MEMORY = {
    what: cells_of(
        "bytes",
        {"softmax": [1e9, 4e9, "dense"], "local": [1e7, 2e7, 4e7], "lsh": [1e8, 2e8, "over 60 s"]},
        LENGTHS,
    )
    for what in TIMES
}


def rows(report):
    return [dict(zip(report.columns, row)) for row in report.rows]


def test_the_table_of_times():
    report = mechanism_tables.time_report(TIMES, NAMES, LENGTHS, "Times", MACHINE)
    assert [row["mechanism"] for row in rows(report)] == NAMES * 2 + ["matrix product, GFLOP/s"] * 2
    softmax, local, lsh, _, slow, broken, forward, both = rows(report)
    assert (softmax["T=8192"], softmax["T=16384"], softmax["growth"]) == ("2 s", "not run", "T^2.00")
    assert softmax["cheaper than softmax from T"] == "" and local["options"] == "radius=256"
    assert (local["growth"], local["cheaper than softmax from T"]) == ("T^1.00", "below 4096")
    # Dense softmax would take 8 s at 16384; lsh has 1.5 times its time at 8192 and half of it at 16384.
    crossing = 8192 * 2 ** (math.log(1.5) / math.log(3))
    assert lsh["cheaper than softmax from T"] == f"~{crossing:.0f}"
    assert (slow["T=16384"], slow["cheaper than softmax from T"]) == ("~11 s", "above 8192")
    assert broken["T=8192"] == "failed"
    assert (forward["T=4096"], both["T=16384"]) == ("2", "3")
    assert "lsh, forward + gradient, T = 8192 failed: no buckets" in report.notes


def test_the_table_of_memory():
    report = mechanism_tables.memory_report(MEMORY, NAMES, LENGTHS, "Memory", MACHINE)
    softmax, local, lsh, *_ = rows(report)
    assert (softmax["T=8192"], softmax["T=16384"]) == ("4.00 GB", "scores 8.59 GB")
    assert (local["T=16384"], lsh["T=16384"]) == ("40 MB", "over 60 s")
    assert any("one score tensor takes 8 T² x 4 bytes" in note for note in report.notes)


def test_the_table_of_promises():
    report = mechanism_tables.promise_report(TIMES, MEMORY, NAMES, "Promises", MACHINE)
    local, lsh = rows(report)
    assert list(local.values()) == ["local", "radius=256", "yes", "yes, 4.0x", "no, 0.8x", "yes, 200.0x", "yes, 200.0x"]
    assert (lsh["must"], lsh["time, forward"], lsh["time, forward + gradient"]) == ("no", "no, 0.7x", "no figure")
    assert report.notes[-1].endswith("or without a figure: local (time, forward + gradient).")
    kept = json.loads(json.dumps(MEMORY))
    kept = {what: {int(n): at for n, at in by_length.items()} for what, by_length in kept.items()}
    swapped = {what: TIMES["forward"] for what in TIMES}
    assert mechanism_tables.promise_report(swapped, kept, NAMES, "Promises", MACHINE).notes[-1] == (
        "Every one that must be cheaper is."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mechanisms", "magic"], "invalid choice: 'magic'"),
        (["--lengths", "0"], "--lengths and --rounds must be at least 1"),
        (["--no-plot", "--resume", "--rounds", "2"], "figures of other settings"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, tmp_path, capsys):
    path = tmp_path / "cells.json"
    Cells(path, {}, resume=False).once("a", lambda: 1)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--cells", str(path), *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]


def test_the_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="the [bench] extra")
    from benchmarks.mechanism_plot import draw

    path = tmp_path / "plot.png"
    draw(mechanism_tables.curves(TIMES, NAMES, "seconds"), mechanism_tables.curves(MEMORY, NAMES, "bytes"), path)
    assert path.read_bytes().startswith(b"\x89PNG")
