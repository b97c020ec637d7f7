"""The command line: bad input is one line and exit code 2, and what was there stays as it was."""

import gzip
import io
import shutil
import sys

import pytest

from keras_attention.cli import main
from keras_attention.errors import UsageError, shown_in_one_line


def refused(capsys, *words):
    """The one line that a command printed before it ended with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    lines = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2
    assert len(lines) == 1 and lines[0].startswith("keras-attention: ")
    return lines[0]


def test_bad_data_files_are_named(tmp_path, capsys):
    contents = {
        "empty.tsv": b"",
        "one_column.tsv": b"hello\nworld\n",
        "binary.tsv": bytes(range(256)) * 8,
        "broken.tsv.gz": gzip.compress(b"".join(b"%d\t%d\n" % (i, i * i) for i in range(500)))[:200],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        line = refused(capsys, "train", "translation", "--out", tmp_path / "run", "--data", tmp_path / name)
        assert str(tmp_path / name) in line
        assert not (tmp_path / "run" / "config.json").exists()
    missing = refused(capsys, "train", "translation", "--out", tmp_path / "run", "--data", tmp_path / "missing.tsv")
    assert "missing.tsv does not exist" in missing


def test_bad_options_are_named(tmp_path, capsys):
    train = ["train", "translation", "--out", tmp_path / "run"]
    assert "unknown locale 'deutsch'" in refused(capsys, *train, "--locales", "en,deutsch")
    assert "Got 100 and 3" in refused(capsys, *train, "--d-model", "100", "--heads", "3")
    assert "Unknown mechanism 'nearby'" in refused(capsys, *train, "--mechanism", "nearby", "--phrases", "200")


@pytest.mark.parametrize("piece", ["model.keras", "tokenizer.model", "config.json"])
def test_a_run_folder_without_a_piece_is_named(run_folder, tmp_path, capsys, piece):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    (folder / piece).unlink()
    assert piece in refused(capsys, "translate", "--model", folder, "one")
    assert piece in refused(capsys, "export", "saved-model", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    whole = (run_folder / piece).read_bytes()
    (folder / piece).write_bytes(whole[: len(whole) // 2])
    assert piece in refused(capsys, "translate", "--model", folder, "one")


def test_an_onnx_folder_that_exists_stays_as_it_was(run_folder, tmp_path, capsys):
    out = tmp_path / "onnx"
    out.mkdir()
    (out / "mine.txt").write_text("kept", encoding="utf-8")
    assert str(out) in refused(capsys, "export", "onnx", run_folder, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_no_model_is_named(tmp_path, capsys):
    assert "nowhere" in refused(capsys, "translate", "--model", tmp_path / "nowhere", "one")
    assert "nowhere" in refused(capsys, "export", "onnx", tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "half.keras").write_bytes(b"PK")
    assert "half.keras is damaged: it is empty, cut short" in refused(
        capsys, "export", "onnx", tmp_path / "half.keras", tmp_path / "out"
    )


def test_what_the_system_says_of_a_path_is_one_line(capsys):
    long = "x" * 300
    for words in (("translate", "--model", long, "Hi."), ("train", "image-classifier", "--out", "run", "--data", long)):
        assert f"{long} cannot be used (File name too long). Give a path that can be read" in refused(capsys, *words)


def test_an_error_about_no_file_is_one_line_too(capsys):
    """Case 107; a reader that has left, as `head` does, is no error."""
    for error, message in (
        (OSError(28, "No space left on device"), "the output cannot be written (No space left on device). Free space"),
        (OSError("odd"), "the output cannot be written (odd)"),
        (MemoryError("1 TB"), "there is not enough memory (1 TB). Choose smaller sizes"),
        (UsageError("a\n b \x1b[1m"), "here: a b \\x1b[1m"),
    ):
        with pytest.raises(SystemExit, match="2"), shown_in_one_line("here"):
            raise error
        line = capsys.readouterr().err
        assert message in line and line.count("\n") == 1 and "\x1b" not in line
    with shown_in_one_line("here"):
        raise BrokenPipeError(32, "Broken pipe")
    assert not capsys.readouterr().err


def test_translate_reads_arguments_or_standard_input(run_folder, capsys, monkeypatch):
    texts = ["one two", "", "seven"]
    with pytest.raises(SystemExit) as ended:
        main(["translate", "--model", str(run_folder), *texts])
    by_argument = capsys.readouterr().out
    assert ended.value.code == 0 and len(by_argument.splitlines()) == 3

    class Input:
        buffer = io.BytesIO("\n".join(texts).encode() + b"\n")

    monkeypatch.setattr(sys, "stdin", Input)
    with pytest.raises(SystemExit):
        main(["translate", "--model", str(run_folder), "--beams", "1"])
    assert capsys.readouterr().out == by_argument
