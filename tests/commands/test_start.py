"""How commands start: help, errors and ONNX folders load no TensorFlow, and files load with the package alone."""

import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from reference_onnx_folder import OnnxToy

from keras_attention import cli
from keras_attention.export import export_onnx
from keras_attention.images import ImageTask
from keras_attention.inference import Translator
from keras_attention.layers import MultiHeadAttention
from keras_attention.models import DecoderLM, ViT
from keras_attention.models.text.token_decoder import POSITIONS
from keras_attention.text import ByteTokenizer, SentencePieceTokenizer
from keras_attention.training.run import run_options

COMMANDS = [
    *(["train", kind] for kind in ("translation", "image-classifier", "clip", "lm")),
    *(["export", kind] for kind in ("saved-model", "onnx")),
    *([name] for name in ("translate", "generate", "classify", "train", "export")),
    [],
]
# Commands in one process, as the console script starts each; prints their codes.
STARTS = """
import json, sys
from keras_attention_command import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["keras-attention", *words]
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
loaded = {"tensorflow", "keras", "sentencepiece"} & set(sys.modules)
print(codes, sorted(loaded))
"""


def started(commands):
    """`(output, standard error, codes, libraries)` of commands in a process of their own, 80 columns wide."""
    child = subprocess.run(
        [sys.executable, "-c", STARTS, json.dumps([[str(word) for word in words] for words in commands])],
        capture_output=True,
        text=True,
        errors="replace",  # a generated text may end in the middle of a letter
        env={**os.environ, "COLUMNS": "80"},
    )
    assert child.returncode == 0, child.stderr
    *output, last = child.stdout.rstrip().split("\n")
    return "\n".join(output), child.stderr, *re.fullmatch(r"(\[.*\]) (\[.*\])", last).groups()


def test_help_is_whole_and_loads_no_library():
    """Case 103: every option's whole name and every closed choice, in 80 columns."""
    output, error, codes, loaded = started([[*words, "--help"] for words in COMMANDS] + [["--version"]])
    assert error == "" and loaded == "[]" and set(json.loads(codes)) == {0}
    assert "keras-attention 0." in output and "\u2026" not in output
    for name in ("--residual-attention-layers", "--validation-sentences", "--no-tensorboard", "--length-penalty"):
        assert name in output
    for choices in (run_options.PRECISIONS, run_options.POSITIONS, ("unigram", "bpe"), ("token", "mean")):
        assert f"[{'|'.join(choices)}]" in output
    assert max(len(line) for line in output.splitlines()) <= 80


def test_errors_of_one_line_load_no_library(tmp_path):
    """Case 103."""
    wrong = [
        ["fly"],
        ["translate", "--modle", "x"],
        ["translate", "--model", "nowhere", "a"],
        ["generate", "--model", "nowhere", "a"],
        ["classify", "--model", "nowhere", "a.png"],
        ["export", "onnx", "nowhere", tmp_path / "out"],
        ["export", "saved-model", "nowhere", tmp_path / "out"],
        ["train", "translation", "--out", tmp_path / "run", "--data", "nowhere.tsv"],
        ["train", "image-classifier", "--out", tmp_path / "run", "--data", "nowhere"],
        ["train", "lm", "--out", tmp_path / "run", "--data", "nowhere.txt"],
        ["train", "clip", "--out", tmp_path / "run", "--data", tmp_path, "--captions", "nowhere.json"],
        ["train", "lm", "--out", tmp_path / "run", "--resume"],
        ["train", "vit", "--out", tmp_path / "run", "--layers", "0"],
    ]
    _, error, codes, loaded = started(wrong)
    assert set(json.loads(codes)) == {2} and loaded == "[]"
    lines = error.splitlines()
    assert len(lines) == len(wrong) and all(line.startswith("keras-attention: ") for line in lines)
    assert all("nowhere" in line and "does not exist" in line for line in lines[2:11])


def test_onnx_folders_answer_without_tensorflow(tmp_path):
    pytest.importorskip("onnxruntime")
    image = pytest.importorskip("PIL.Image")
    words = ["one two three", "four five six", "seven eight"]
    tokenizer = SentencePieceTokenizer.train(words * 4, vocab_size=24)
    folders = {name: tmp_path / name for name in ("translation", "language", "images")}
    folders["translation"].mkdir()
    tokenizer.save(folders["translation"] / "tokenizer.model")
    OnnxToy(np.random.default_rng(7), tokenizer.vocab_size).write(folders["translation"], max_length=21)
    model = DecoderLM(260, d_model=8, num_heads=2, num_layers=1, max_length=19)
    export_onnx(model, folders["language"], tokenizer=ByteTokenizer())
    task = ImageTask(labels=("a", "b", "c"), height=6, width=8, channels=1, mean=(0.4,), std=(0.3,))
    model = ViT((6, 8), 2, 3, d_model=8, num_layers=1, num_heads=2, channels=1)
    model.build()
    export_onnx(model, folders["images"], images=task)
    image.new("L", (9, 7)).save(tmp_path / "black.png")

    output, error, codes, loaded = started(
        [
            ["translate", "--model", folders["translation"], "--beams", "2", *words],
            ["generate", "--model", folders["language"], "ab", "--tokens", "3"],
            ["classify", "--model", folders["images"], tmp_path / "black.png"],
        ]
    )
    assert (error, codes, loaded) == ("", "[0, 0, 0]", "['sentencepiece']")
    assert output.split("\n")[: len(words)] == Translator.load(folders["translation"])(words, beams=2)
    assert f"{tmp_path / 'black.png'}\t" in output


def test_keras_finds_layers_and_mechanisms_with_the_package_alone(tmp_path):
    inputs = keras.Input([6, 8])
    layer = MultiHeadAttention(8, 2, mechanism="local", positions="rotary")
    keras.Model(inputs, layer(inputs)).save(tmp_path / "own.keras")
    script = "import sys, keras, keras_attention; print(keras.models.load_model(sys.argv[1]).count_params())"
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "own.keras")], capture_output=True, text=True, check=True
    )
    assert int(child.stdout) == layer.count_params()


def test_python_m_is_the_command():
    child = subprocess.run([sys.executable, "-m", "keras_attention", "--version"], capture_output=True, text=True)
    assert child.returncode == 0 and child.stdout.startswith("keras-attention 0.")


def test_ctrl_c_while_the_first_modules_load_is_130(monkeypatch, capsys):
    """Case 112."""
    import keras_attention_command

    def loading():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", loading)
    with pytest.raises(SystemExit, match="130"):
        keras_attention_command.main()
    assert capsys.readouterr().err == "keras-attention: interrupted\n"


def test_the_options_know_the_positions_of_the_models():
    assert set(run_options.POSITIONS) == set(POSITIONS) and len(run_options.POSITIONS) == len(POSITIONS)
