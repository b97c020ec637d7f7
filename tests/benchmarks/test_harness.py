"""The benchmark harness: what it counts and writes, never how long something takes."""

import sys

import pytest

pytestmark = pytest.mark.benchmarks

harness = pytest.importorskip("benchmarks.harness", reason="benchmarks are not part of the wheel")


def test_candidates_alternate_and_self_timed_ones_are_believed():
    order = []

    def candidate(name, seconds):
        def work():
            order.append(name)
            return harness.Seconds(seconds)

        return work

    candidates = {"slow": candidate("slow", 4.0), "fast": candidate("fast", 1.0)}
    timings = harness.measure(candidates, baseline="slow", rounds=3, warmup=2, operations=8.0, rate_size=8)
    assert order == ["slow", "slow", "fast", "fast"] + ["slow", "fast"] * 3
    assert timings["slow"].ratio == 1.0
    assert timings["fast"].ratio == 4.0
    assert timings["fast"].rate == 8.0
    assert timings["fast"].median == 1.0
    assert timings["fast"].spread == 0.0
    assert timings["fast"].machine_rate > 0
    assert len(timings["fast"].samples) == 3


@pytest.mark.parametrize(
    "options, message",
    [({"baseline": "other"}, "baseline must be one of"), ({"rounds": 0}, "at least 1"), ({"warmup": 0}, "at least 1")],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        harness.measure({"a": lambda: None}, **options)


def memory_case(megabytes):
    """Called in the child: the input does not count, the hidden buffer and the result do."""
    import numpy as np

    ballast = np.ones(40_000_000, "uint8")

    def work():
        hidden = np.ones(megabytes * 1_000_000, "uint8")
        return {"answer": [hidden[:10].copy() + ballast[:10], np.ones(20_000_000, "uint8")]}

    return work


def test_memory_of_a_child_leaves_out_inputs_and_results():
    memory = harness.peak_memory("tests.benchmarks.test_harness:memory_case", {"megabytes": 90})
    assert memory.results == 20_000_010
    assert memory.device is None
    assert 88e6 < memory.extra < 100e6
    assert memory.baseline > 40e6


def test_a_failing_child_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)memory_case failed.*unexpected keyword argument"):
        harness.peak_memory("tests.benchmarks.test_harness:memory_case", {"wrong": 1})


def test_a_worker_answers_in_turn_and_its_death_is_an_error():
    code = (
        "import json\nprint('a library says hello')\nprint(json.dumps({'ready': 'peer 1.0'}), flush=True)\n"
        "for line in iter(input, json.dumps('stop')):\n    print(json.dumps({'seconds': 0.5}), flush=True)"
    )
    worker = harness.Worker([sys.executable, "-c", code])
    assert worker.ready == "peer 1.0"
    assert worker() == harness.Seconds(0.5)
    with pytest.raises(RuntimeError, match="ended with code 0 before it answered"):
        worker.ask("stop")
    worker.close()


def test_report_has_a_row_for_each_timing_and_the_command(capsys):
    report = harness.Report("Toy", command="python -m benchmarks.toy --length 8")
    timings = {"ours": harness.Timing("ours", 2.0, (0.1, 0.2, 0.4), 1.5, 3e9, 6e9)}
    report.add_timings(timings, T=128)
    report.add(T=256, candidate="theirs | other")
    report.notes.append("A note.")
    text = report.markdown()
    assert "| 128 | ours | 200 ms | ±38% | 1.50x | 2 s | 3 | 50% | 6 |" in text
    assert "theirs \\| other" in text
    assert "- A note." in text
    assert "```\npython -m benchmarks.toy --length 8\n```" in text
    assert "threads" in text
    with pytest.raises(ValueError, match="Unknown columns"):
        report.add(color="red")
    report.print()
    assert "theirs | other" in capsys.readouterr().out


def test_results_keep_other_sections(tmp_path):
    path = tmp_path / "RESULTS.md"
    harness.append_results("Speed", "old\n\n```\n# a comment, no heading\n```\n", path)
    harness.append_results("Memory", "kept", path)
    harness.append_results("Speed", "new", path)
    assert path.read_text() == "# Results\n\n## Speed\n\nnew\n\n## Memory\n\nkept\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["RESULTS.md"]


@pytest.mark.parametrize("value, text", [(2e-6, "2 µs"), (0.0123, "12.3 ms"), (1.5, "1.5 s")])
def test_durations(value, text):
    assert harness.duration(value) == text
