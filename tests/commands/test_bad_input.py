"""Hundreds of commands with bad input: whatever is wrong, one line and exit code 2, and nothing new on the disk.

Options first, then every file of a run folder and of its exports, damaged in the ways that files get damaged. In one
process, through the typer application; a few commands in processes of their own are in test_cli.py.
"""

import contextlib
import io
import json
import os
import shutil

import numpy as np
import pytest
import release_folders
import typer

from keras_attention.cli import build_app, main

pytestmark = pytest.mark.sweep

ARCHIVE = max(release_folders.FOLDER.glob("*/folders/archive.tar.xz"))
ABSURD = ("-1", "0", "1e8", "100000000", "nan", "abc", "", "\x1b[31m9", "99999999999999999999999")
TRAINED = {"translation": ["--data"], "image-classifier": ["--data"], "clip": ["--data"], "lm": ["--data"]}
# How a JSON file gets spoilt: what is JSON of another kind, and what is none.
SPOILT = (b"", b"[" * 200_000, b"[]", b"null", b"{}", b'{"options": [], "kind": 5}', b'{"a": NaN', b"\xff\xfe", b'"x"')
VALUES = (None, [], {}, "abc", -1, 2.5, True, 10**12, "9" * 5000)
KINDS = {"translation": ["translate", "a"], "vit": ["classify", "image.png"], "lm": ["generate", "a"]}
RUNS = {"translation": "run", "vit": "finished", "lm": "run", "clip": "finished"}


def run(*words, stdin=b""):
    """`(code, lines on standard error)` of a command; anything but an exit is a fault."""
    out, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(list(words))
        except SystemExit as end:
            return end.code or 0, error.getvalue().splitlines()
    return 0, error.getvalue().splitlines()


def check(faults, *words):
    """Notes a command that does not end as bad input must."""
    try:
        code, lines = run(*words)
    except BaseException as error:
        faults.append((words, repr(error)[:300]))
        return
    if code == 2 and len(lines) == 1 and lines[0].isprintable():
        return
    if code:
        faults.append((words, code, lines[:3]))


def test_options(tmp_path, monkeypatch):
    """Each option of each training command with absurd values; the data do not exist, so that nothing is trained."""
    monkeypatch.chdir(tmp_path)
    app, faults, tried = typer.main.get_command(build_app()), [], 0
    for name, data in TRAINED.items():
        for parameter in app.commands["train"].commands[name].params:
            flag = max(parameter.opts, key=len)
            if flag in ("--help", "--out", "--data") or parameter.is_flag:
                continue
            for value in ABSURD:
                check(faults, "train", name, *data, "nothing.npz", "--out", "run", flag, value)
                tried += 1
        for out in ("", "/dev/null", "/proc/x", "a\0b", "x" * 300, "\x1b[31m"):
            check(faults, "train", name, *data, "nothing.npz", "--out", out)
        for folder in ("nothing", "."):
            check(faults, "train", name, "--resume", "--out", folder)
    print(f"{tried} commands with absurd options")
    assert not faults, f"{len(faults)} of {tried}: {faults[:8]}"
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_folders(tmp_path, monkeypatch, kind):
    """Each file of a run and of both exports: missing, empty, cut, noise; and JSON with values of other types."""
    rng = np.random.default_rng(7)
    monkeypatch.chdir(tmp_path)
    release_folders.unpack(ARCHIVE, kind, tmp_path)
    from PIL import Image

    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save("image.png")
    faults, tried = [], 0
    command, argument = KINDS[kind]
    for layout in (RUNS[kind], "saved_model", "onnx"):
        root = tmp_path / layout
        assert run(command, "--model", layout, argument) == (0, [])
        for path in sorted(entry for entry in root.rglob("*") if entry.is_file() and "checkpoints" not in entry.parts):
            kept = path.read_bytes()
            for damaged in _damages(kept, path, rng):
                if damaged is None:
                    path.unlink()
                else:
                    path.write_bytes(damaged)
                check(faults, command, "--model", layout, argument)
                if layout == RUNS[kind]:
                    check(faults, "export", "onnx", layout, "out")
                    shutil.rmtree("out", ignore_errors=True)
                tried += 1
                path.write_bytes(kept)
    print(f"{tried} damaged folders of {kind}")
    assert not faults, f"{len(faults)} of {tried}: {faults[:8]}"


def _damages(kept, path, rng):
    yield None
    if path.suffix != ".json":
        yield b""
        yield kept[: len(kept) // 2]
        noise = bytearray(kept)
        for place in rng.integers(0, len(kept), max(1, len(kept) // 50)):
            noise[place] = rng.integers(256)
        yield bytes(noise)
        return
    yield from SPOILT
    content = json.loads(kept)
    if isinstance(content, dict):
        for key in content:
            yield json.dumps({**content, key: VALUES[rng.integers(len(VALUES))]}).encode()


@pytest.mark.parametrize("kind", RUNS)
def test_models_of_other_kinds(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    release_folders.unpack(ARCHIVE, kind, tmp_path)
    faults = []
    for layout in (RUNS[kind], f"{RUNS[kind]}/model.keras", "saved_model", "saved_model/1", "onnx"):
        for other, (command, argument) in KINDS.items():
            if other != kind:
                code, lines = run(command, "--model", layout, argument)
                if code != 2 or len(lines) != 1:
                    faults.append((command, kind, layout, code, lines[:3]))
        if layout.startswith(("saved", "onnx")):
            check(faults, "export", "saved-model", layout, "out")
    for other in TRAINED:
        if other != {"vit": "image-classifier"}.get(kind, kind):
            code, lines = run("train", other, "--resume", "--out", RUNS[kind])
            if code != 2 or len(lines) != 1:
                faults.append(("train", other, kind, code, lines[:3]))
    assert not faults, faults[:8]
