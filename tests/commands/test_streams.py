"""What goes in and out of commands: encodings, pipes, full disks, interruptions, wrong flags."""

import io
import re
import sys
from pathlib import Path

import pytest

from keras_attention import cli
from keras_attention.cli import main
from keras_attention.inference import Translator
from keras_attention.text import SentencePieceTokenizer


class Lines(io.RawIOBase):
    """Standard input that comes in pieces, and notes what stood on standard output whenever it was asked for one."""

    def __init__(self, pieces, printed):
        self.pieces, self.printed, self.seen = list(pieces), printed, []
        self.buffer = self

    def read1(self, size):
        self.seen.append(self.printed())
        return self.pieces.pop(0) if self.pieces else b""


def translated(monkeypatch, run_folder, pieces):
    """`(output at each read, standard error)` of translate, whose streams are cp1252 at first."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2))
    given = Lines(pieces, lambda: out.buffer.getvalue())
    for name, stream in (("stdin", given), ("stdout", out), ("stderr", err)):
        monkeypatch.setattr(sys, name, stream)
    with pytest.raises(SystemExit, match="0"):
        main(["translate", "--model", str(run_folder)])
    err.flush()
    return given.seen, err.buffer.getvalue().decode()


def refused(capsys, *words):
    with pytest.raises(SystemExit, match="2"):
        main([str(word) for word in words])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("keras-attention: ")
    return lines[0]


def test_translate_answers_line_by_line(run_folder, monkeypatch):
    """Case 104: each line has its answer before the next one is read; lines that come together go together."""
    pieces = [b"one two\n", b"se", b"ven\nfive\r\nsix\n", b"four"]
    seen, _ = translated(monkeypatch, run_folder, pieces)
    assert [text.count(b"\n") for text in seen] == [0, 1, 1, 4, 4]


def test_translate_says_what_it_cannot_read(run_folder, monkeypatch):
    """Case 99: a text that is too long, and bytes that are no UTF-8; in Python `truncated` tells."""
    long = b"one two three four five six seven eight " * 3
    _, err = translated(monkeypatch, run_folder, [b"one\n" + long + b"\n", b"seven\n\xff two\n"])
    tokenizer = SentencePieceTokenizer.load(run_folder / "tokenizer.model")
    tokens = len(tokenizer.encode([long.decode()])[0]) + 2
    assert err.splitlines() == [
        f"keras-attention: line 2 has {tokens} tokens, of which the model reads 12: its end is left out",
        "keras-attention: line 4 is not UTF-8: what cannot be read became U+FFFD",
    ]
    translator = Translator.load(run_folder)
    translator([long.decode(), "one", long.decode()])
    assert translator.truncated == [(0, tokens, 12), (2, tokens, 12)]
    assert len(translator(["one"])) == 1 and translator.truncated == []


def test_output_is_utf_8_whatever_the_locale_says(run_folder, monkeypatch):
    """Case 52, of every command: the streams are set before any of them runs."""
    monkeypatch.setattr(Translator, "__call__", lambda self, texts, **options: ["łóźż \ud800" for _ in texts])
    seen, _ = translated(monkeypatch, run_folder, [b"a\n", b"b\n"])
    assert seen[-1].decode("utf-8") == "łóźż ?\n" * 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line(run_folder, monkeypatch, capsys):
    """Case 107."""
    for words in (("translate", "--model", run_folder, "one"), ("--help",)):
        full = open("/dev/full", "w")  # noqa: SIM115 it cannot be closed: what it holds is written then
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            line = refused(capsys, *words)
        assert "the output cannot be written (No space left on device). Free space" in line


def test_wrong_flags_are_one_line(capsys):
    """Case 116: what typer says looks like all other errors."""
    assert "Missing option '--model'" in refused(capsys, "translate", "one")
    assert "No such option: --modle" in refused(capsys, "classify", "--modle", "x", "y.png")
    assert "Invalid value for '--beams'" in refused(capsys, "translate", "--model", "x", "--beams", "many", "a")
    assert "No such command 'fly'" in refused(capsys, "fly")


def test_names_with_codes_of_a_terminal_are_shown_as_text(tmp_path, capsys):
    """Case 116."""
    line = refused(capsys, "translate", "--model", tmp_path / "a\x1b[31mred\nline", "one")
    assert "a\\x1b[31mred line does not exist" in line


def test_ctrl_c_while_libraries_load_is_130(monkeypatch, capsys):
    """Case 112: while the commands are imported, and while a model is loaded."""

    def loading(*_, **__):
        raise KeyboardInterrupt

    for owner, name in ((cli, "build_app"), (Translator, "load")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, loading)
            with pytest.raises(SystemExit, match="130"):
                main(["translate", "--model", "x", "one"])
        assert capsys.readouterr().err == "keras-attention: interrupted\n"


def test_a_saved_model_is_said_to_be_code(capsys):
    """Case 117."""
    for command in ("translate", "classify", "generate"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert "load only what you trust" in " ".join(re.sub("[│\\s]+", " ", capsys.readouterr().out).split())
