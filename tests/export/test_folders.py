"""What an export leaves behind: nothing of one that failed, nothing of one that was killed, all of those at work."""

import errno
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export import export_onnx, export_saved_model, folders
from keras_attention.export.kinds.translation import TranslationPlan
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer


def small_model():
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)])


KILLED = """
import sys
from keras_attention.export import folders
with folders.beside(sys.argv[1]) as temporary:
    (temporary / "part").write_text("half")
    print(temporary, flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_killed_export_goes_and_that_of_one_at_work_stays(tmp_path):
    place = tmp_path / "deep" / "model"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    left = child.stdout.readline().strip()
    with folders.beside(place) as mine:
        assert sorted(os.listdir(place.parent)) == sorted([mine.name, os.path.basename(left)])
    child.kill()
    child.wait()
    with folders.beside(place) as mine:
        assert os.listdir(place.parent) == [mine.name]
    assert place.parent.is_dir() and not os.listdir(place.parent)  # which the killed one had made


@pytest.mark.parametrize("parents", ["", "one/two"])
def test_a_failure_leaves_no_parents(tmp_path, parents):
    (tmp_path / "mine").write_text("stays")
    with pytest.raises(RuntimeError), folders.beside(tmp_path / parents / "model") as temporary:
        assert temporary.is_dir()
        raise RuntimeError
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "variables; No space left on device"),
    ],
    ids=["OSError", "TensorFlow"],
)
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(UsageError, match=r"sub (is full|cannot be written \(No space.*\))\. Free space.*nothing was w"):
        export_saved_model(small_model(), tmp_path / "sub" / "model")
    assert not os.listdir(tmp_path)


def test_a_path_that_is_no_utf8_is_one_line(tmp_path):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff")
    for export in (export_saved_model, export_onnx):
        with pytest.raises(UsageError, match=r"m\?' is not UTF-8, as the libraries that write there need it"):
            export(small_model(), place)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, value):
    """Case 111: NaN would equal NaN in the comparison."""
    model = small_model()
    model.layers[-1].kernel.assign(np.where(np.arange(6).reshape(3, 2) == 4, value, 1.0))
    for export in (export_saved_model, export_onnx):
        with pytest.raises(UsageError, match=r"its weight .*dense.*/kernel is not finite, so the training diverged"):
            export(model, tmp_path / "model")
    assert not os.listdir(tmp_path)


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path):
    """Case 108: its ids beyond the model's would be empty texts."""
    tokenizer = SentencePieceTokenizer.train(["one two three", "four five six"] * 9, vocab_size=21)
    model = Transformer(22, 22, d_model=4, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_length=6)
    model.build()
    assert TranslationPlan.takes(model, None, True)
    for export in (export_saved_model, export_onnx):
        with pytest.raises(UsageError, match=r"has a tokenizer of 21 ids for a model of 22"):
            export(model, tmp_path / "model", tokenizer=tokenizer)
    assert not os.listdir(tmp_path)
