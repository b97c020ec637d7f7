"""The demo's edges, without its training: which folders it clears, how it fails, what it promises."""

import importlib.util
from pathlib import Path

import pytest

from keras_attention.errors import UsageError


@pytest.fixture(scope="module")
def demo():
    path = Path(__file__).parents[2] / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_of_something_else_is_left_alone(demo, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        demo.main(["--out", str(tmp_path)])
    assert ended.value.code == 2 and "is no earlier demo: give another --out" in capsys.readouterr().err
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"


def test_an_earlier_demo_goes_and_bad_input_is_one_line(demo, tmp_path, capsys, monkeypatch):
    def train(options):
        raise UsageError("no space is left")

    monkeypatch.setattr(demo, "train", train)
    for name in ("run", "onnx"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        demo.main(["--out", str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.endswith("no space is left")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_promises(demo):
    kept = {"outputs_identical": True, "exact_match": 0.95, "exact_match_by_kind": {"date": 0.9}}
    assert demo.broken_promises(kept) == []
    broken = {"outputs_identical": False, "exact_match": 0.949, "exact_match_by_kind": {"date": 0.5, "time": 1.0}}
    assert demo.broken_promises(broken) == [
        "the answers of Keras, SavedModel and ONNX differ",
        "exact match is 94.9%, expected at least 95%",
        "exact match of date is 50.0%, expected at least 90%",
    ]
