"""Tables about finished run folders of images: scores of several seeds in one row, recalls beside chance."""

import json
from pathlib import Path

import pytest

from benchmarks import clip, runs, vision
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.vision.options import VisionOptions

pytestmark = pytest.mark.benchmarks

SCORES = {"test/top5_accuracy": 1.0, "validation/accuracy": 0.5, "epochs": 3.0, "train_seconds": 90.0, "seconds": 120.0}
RATES = {"train_rate": 10.0, "steps": 9.0}


def run(folder, accuracy, parameters=7.0, **options):
    folder.mkdir()
    given = VisionOptions(out=str(folder), **options).as_dict()
    (folder / "config.json").write_text(json.dumps({"options": given}))
    scores = {**SCORES, **RATES, "test/accuracy": accuracy, "parameters": parameters}
    (folder / "metrics.json").write_text(json.dumps(scores))
    return folder


def test_runs_that_differ_in_their_seed_are_one_row(tmp_path):
    paths = [run(tmp_path / f"s{seed}", score, seed=seed) for seed, score in enumerate((0.91, 0.97, 0.93))]
    groups = vision.grouped([*paths, run(tmp_path / "other", 0.5, epochs=9)])
    assert [len(runs) for runs in groups.values()] == [3, 1]
    cells = [vision.row(runs) for runs in groups.values()]
    assert cells[0]["test accuracy"] == "93.00% (of 91.00%, 97.00%, 93.00%)"
    assert cells[1]["test accuracy"] == "50.00%" and "--epochs 9" in list(groups)[1]


def test_the_claim_compares_a_hybrid_and_a_cnn_under_one_limit(tmp_path):
    hybrid = run(tmp_path / "h", 0.95, parameters=1234.0, model="hybrid", minutes=1)
    cnn = run(tmp_path / "c", 0.88, model="cnn", minutes=1)
    _, _, ours, command, word = vision.claim(vision.grouped([hybrid, cnn]))
    assert "+7.0 points: 95.0% against 88.0%" in ours and "1,234 and 7 parameters" in ours and word.startswith("Holds.")
    assert "--model hybrid" in command and "--model cnn" in command
    for name, score, word in (("equal", 0.95, "Not seen here."), ("near", 0.93, "Smaller here.")):
        other = run(tmp_path / name, score, model="cnn", minutes=1)
        assert vision.claim(vision.grouped([hybrid, other]))[4].startswith(word)
    with pytest.raises(SystemExit, match="No cnn among the runs"):
        vision.claim(vision.grouped([hybrid]))
    longer = run(tmp_path / "l", 0.99, model="cnn", minutes=2)
    with pytest.raises(SystemExit, match="the same data with the same limits"):
        vision.claim(vision.grouped([hybrid, longer]))


def test_commands_name_neither_the_folder_of_the_run_nor_that_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_ATTENTION_DATA", str(tmp_path))
    given = ClipOptions(out="r", data=f"{tmp_path}/a/b.npz", captions="c.json", jit_compile=True, seed=3).as_dict()
    words = "keras-attention train clip --out RUN --seed 3 --jit-compile --data DATA/a/b.npz --captions c.json"
    assert sorted(runs.command_of("clip", ClipOptions, given).split()) == sorted(words.split())


def test_recalls_stand_beside_chance():
    recalls = {"test/image_to_text_recall@1": 0.12, "test/image_to_text_recall@5": 0.4}
    recalls |= {"test/text_to_image_recall@1": 0.04, "test/text_to_image_recall@5": 0.2}
    metrics = {**SCORES, **recalls, "test/pairs": 50.0, "parameters": 7.0, "train_rate": 3.0}
    cells = clip.row(Path("runs/x").name, metrics)
    assert cells["text by image, @1"] == "12.0% (6x chance)" and cells["text by image, @5"] == "40.0% (4x chance)"
    assert cells["image by text, @1"] == "4.0% (2x chance)" and cells["image by text, @5"] == "20.0% (2x chance)"
    assert "zero-shot" not in cells
    named = clip.row("x", {**metrics, "test/zero_shot_accuracy": 0.25, "test/zero_shot_classes": 12.0})
    assert named["zero-shot"] == "25.0% of 12 groups"
