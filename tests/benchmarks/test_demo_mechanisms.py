"""The demo's task with each mechanism: what is trained, what is left alone, and the table; nothing is trained here."""

import json
import subprocess

import pytest

from keras_attention import mechanisms
from keras_attention.training.run.mechanism_options import stack_mechanisms
from keras_attention.training.translation.options import TranslationOptions

pytestmark = pytest.mark.benchmarks

demo_mechanisms = pytest.importorskip("benchmarks.demo_mechanisms", reason="benchmarks are not part of the wheel")


def test_every_mechanism_that_a_sentence_allows_has_a_run():
    encoders = set()
    for differences in demo_mechanisms.RUNS.values():
        stack_mechanisms(TranslationOptions(out="x", **differences))  # its text is valid
        encoders.add(differences["mechanism"].partition(":")[0])
    assert encoders == set(mechanisms.names()) - {"axial"}


@pytest.fixture
def trainings(monkeypatch):
    """Commands in place of trainings: they leave the files of a finished run, or fail, or are interrupted."""
    calls, codes = [], {}

    def run(command, stdout, **_):
        folder = demo_mechanisms.Path(command[command.index("--out") + 1])
        calls.append((folder.name, command))
        code = codes.get(folder.name, 0)
        if "--resume" not in command:
            folder.mkdir()
        options = demo_mechanisms.demo_options(folder, steps=50, **demo_mechanisms.RUNS[folder.name])
        config = {"options": options.as_dict(), "model": {"decoder_mechanism": "auto"}}
        (folder / "config.json").write_text(json.dumps(config))
        if code == 0:
            scores = {
                "test/exact_match": 0.5 + len(calls) / 100,
                "test/exact_match/date": 0.25,
                "test/exact_match/time": 0.75,
            }
            scores |= {"test/loss": 0.125, "steps": 50, "parameters": 1234567, "train_seconds": 61.4}
            (folder / "metrics.json").write_text(json.dumps(scores))
        else:
            stdout.write("the last line\n")
            stdout.flush()
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(demo_mechanisms.subprocess, "run", run)
    return calls, codes


def test_missing_runs_are_trained_with_the_demos_options_and_finished_ones_skipped(trainings, tmp_path, capsys):
    calls, codes = trainings
    arguments = ["--out", str(tmp_path / "runs"), "--steps", "50", "--runs", "softmax", "lsh", "retention-decoder"]
    codes["lsh"] = 1
    assert demo_mechanisms.main(arguments) == 1
    said = capsys.readouterr().out
    assert "lsh: failed with code 1: the last line" in said and "failed: lsh\n" in said
    assert [name for name, _ in calls] == ["softmax", "lsh", "retention-decoder"]
    command = calls[2][1]
    assert command[1:5] == ["-m", "keras_attention.cli", "train", "translation"]
    flags = {word: command[i + 1] for i, word in enumerate(command[:-1]) if word.startswith("--")}
    for flag, value in {"--steps": "50", "--cooldown": "30", "--d-model": "128", "--max-length": "64"}.items():
        assert flags[flag] == value
    assert flags["--mechanism"] == "softmax" and flags["--decoder-mechanism"] == "retention"
    # The same command again: what failed goes on, what is finished stays.
    calls.clear(), codes.clear()
    assert demo_mechanisms.main(arguments) == 0
    assert [(name, "--resume" in command) for name, command in calls] == [("lsh", True)]
    calls.clear()
    assert demo_mechanisms.main([*arguments, "--no-training"]) == 0 and not calls
    assert demo_mechanisms.exact_matches(tmp_path / "runs") == {
        "softmax": (0.51, 50),
        "retention-decoder": (0.53, 50),
        "lsh": (0.51, 50),
    }


def test_an_interruption_ends_the_whole(trainings, tmp_path, capsys):
    calls, codes = trainings
    codes["softmax"] = 130
    assert demo_mechanisms.main(["--out", str(tmp_path), "--steps", "50", "--runs", "softmax", "relu"]) == 130
    assert [name for name, _ in calls] == ["softmax"]
    assert "the same command goes on" in capsys.readouterr().err


def test_a_folder_with_another_budget_is_refused(trainings, tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--runs", "softmax"]
    demo_mechanisms.main([*arguments, "--steps", "50"])
    with pytest.raises(SystemExit) as ended:
        demo_mechanisms.main([*arguments, "--steps", "60"])
    assert ended.value.code == 2
    assert "cannot be resumed with other options" in capsys.readouterr().err


def test_the_table(trainings, tmp_path):
    names = ["lsh", "relu"]
    demo_mechanisms.main(["--out", str(tmp_path), "--steps", "50", "--runs", *names])
    options = {n: demo_mechanisms.demo_options(tmp_path / n, steps=50, **demo_mechanisms.RUNS[n]) for n in names}
    text = demo_mechanisms.table(options, wanted=[*names, "random", "linear"], failed=["random"]).markdown()
    lsh = demo_mechanisms.RUNS["lsh"]["mechanism"]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:] == [  # the best first
        "| relu | relu | auto | 52.0% | date 25.0% | 0.125 | 50 | 1,234,567 | 61 s |",
        f"| lsh | {lsh} | auto | 51.0% | date 25.0% | 0.125 | 50 | 1,234,567 | 61 s |",
    ]
    assert "- failed: random\n" in text and "- not trained to the end: linear\n" in text
