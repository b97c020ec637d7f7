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
from keras_attention.models import CLIP, DecoderLM, TextEncoder, Transformer, ViT
from keras_attention.text import ByteTokenizer, SentencePieceTokenizer


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


def test_abandoned_folders_go_beside_and_inside_and_others_stay(tmp_path):
    place = tmp_path / "model.v1"
    place.mkdir()
    abandoned = [folder / f".model.v1.{'0a' * 6}.tmp" for folder in (tmp_path, place)]
    others = [tmp_path / ".model.v1.mine.tmp", tmp_path / f".model.v1.b.{'0a' * 6}.tmp", tmp_path / ".modelxv1.tmp"]
    for folder in (*abandoned, *others):
        (folder / "part").mkdir(parents=True)
    with folders.beside(place):
        pass
    assert not any(folder.exists() for folder in abandoned) and all(folder.exists() for folder in others)


def test_a_disk_without_locks_keeps_every_folder(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(folders.fcntl, "flock", unsupported)
    with folders.beside(tmp_path / "model") as first, folders.beside(tmp_path / "model") as second:
        assert first.is_dir() and second.is_dir()


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
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        tf.errors.ResourceExhaustedError(None, None, "variables; No space left on device"),
        tf.errors.UnknownError(None, None, "variables; Disk quota exceeded"),
    ],
    ids=["OSError", "quota", "TensorFlow", "TensorFlow's quota"],
)
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(
        UsageError, match=r"sub (is full|cannot be written \((No space|Disk quota).*\))\. Free space.*nothing was w"
    ):
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


def test_half_precision_that_overflows_is_refused(tmp_path):
    """Case 111, with weights that are numbers: NaN in Keras and in the export would be no difference."""
    overflow = keras.layers.Lambda(lambda x: x / 1e-4 * 1e4 - x / 1e-4 * 1e4, name="p", dtype="float16")
    model = keras.Sequential([keras.Input((3,), name="x"), overflow])
    for export in (export_saved_model, export_onnx):
        with pytest.raises(UsageError, match=r"p is NaN in Keras itself: there is nothing to compare with"):
            export(model, tmp_path / "model")
    assert not os.listdir(tmp_path)


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path):
    """Case 108: its ids beyond the model's would be empty texts."""
    tokenizer = SentencePieceTokenizer.train(["one two three", "four five six"] * 9, vocab_size=21)
    model = Transformer(22, 22, d_model=4, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_length=6)
    language = DecoderLM(261, d_model=4, num_heads=2, num_layers=1, max_length=6)
    towers = {"d_model": 4, "num_layers": 1, "num_heads": 2}
    clip = CLIP(ViT(4, 2, **towers), TextEncoder(20, max_length=6, **towers), projection_dim=3)
    for each in (model, language, clip):
        each.build()
    for export in (export_saved_model, export_onnx):
        with pytest.raises(UsageError, match=r"has a tokenizer of 21 ids for a model of 22"):
            export(model, tmp_path / "model", tokenizer=tokenizer)
        with pytest.raises(UsageError, match=r"has a tokenizer of 260 ids for a model of 261"):
            export(language, tmp_path / "model", tokenizer=ByteTokenizer())
        with pytest.raises(UsageError, match=r"has a tokenizer of 21 ids for a model of 20"):
            export(clip, tmp_path / "model", tokenizer=tokenizer)
    assert not os.listdir(tmp_path)
