"""Folders that appear whole or not at all."""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from keras_attention.errors import UsageError


@contextlib.contextmanager
def beside(path):
    """An empty folder to write in, on the same disk as `path` and gone after the block unless it was moved.

    A hidden one: inside `path` where that is a folder (it may be a disk of its own), otherwise next to it.
    """
    path = Path(path)
    parent = path if path.is_dir() else path.parent
    temporary = parent / f".{path.name}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{parent} cannot be written ({error.strerror}). Give another folder.") from None
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new(path):
    """Raises where `path` exists: an ONNX folder is never overwritten nor mixed with another."""
    if Path(path).exists() or Path(path).is_symlink():
        raise UsageError(f"{path} exists already. Give a new folder, or remove this one first.")


def check_versions(path):
    """Raises where `path` is something else than a folder of SavedModel versions (or nothing yet)."""
    path = Path(path)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link to nothing. Give another folder.")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file. A SavedModel needs a folder; give another one.")
    entries = path.iterdir() if path.is_dir() else ()
    # Hidden ones are those of exports under way, or killed: no server looks at them.
    strangers = sorted(entry.name for entry in entries if not _is_version(entry) and not entry.name.startswith("."))
    if strangers:
        raise UsageError(
            f"{path} is not a folder of SavedModel versions (it holds {strangers[0]}). Give a new folder, or one that "
            "an earlier export wrote."
        )


def latest_version(path):
    """The highest number among the versions in a folder, or None."""
    path = Path(path)
    versions = [int(entry.name) for entry in path.iterdir() if _is_version(entry)] if path.is_dir() else []
    return max(versions, default=None)


def move_new(temporary, path):
    """Gives a finished folder its name, in one step."""
    check_new(path)
    os.rename(temporary, path)
    return Path(path)


def move_as_version(temporary, path):
    """Gives a finished folder the next version's number inside `path`, in one step; returns its path."""
    path = Path(path)
    path.mkdir(exist_ok=True)
    while True:
        version = path / str((latest_version(path) or 0) + 1)
        try:
            os.rename(temporary, version)  # fails where another export was quicker: its folder is not empty
            return version
        except OSError:
            if not version.exists():
                raise


def _is_version(entry):
    return entry.is_dir() and entry.name.isascii() and entry.name.isdigit()
