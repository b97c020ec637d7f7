"""Folders that appear whole or not at all."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from pathlib import Path

from keras_attention.errors import UsageError, reason_of
from keras_attention.files import absent, is_version, newest_version, remove_empty
from keras_attention.text.well_formed import well_formed

_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))


@contextlib.contextmanager
def beside(path):
    """An empty folder to write in, on the same disk as `path` and gone after the block unless it was moved.

    A hidden one: inside `path` where that is a folder (it may be a disk of its own), otherwise next to it. It is locked
    for as long as this process lives, so that the folders of exports that were killed are told from those of others at
    work, and removed. After a failure the parents that were made for it go too.

    Raises:
        UsageError: the place cannot be written, or its disk is full; nothing is left behind then.
    """
    path = Path(path)
    parent = path if path.is_dir() else path.parent
    made = absent(parent)
    with _disk_in_one_line(parent):
        try:
            temporary, lock = _locked(parent, path.name)
            _remove_abandoned(path)
            try:
                yield temporary
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
                os.close(lock)
        finally:
            remove_empty(made)


def _locked(parent, name):
    """A new hidden folder and the descriptor that holds its lock."""
    while True:
        temporary = parent / f".{name}.{uuid.uuid4().hex[:12]}.tmp"
        temporary.mkdir(parents=True)
        lock = os.open(temporary, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a disk without locks of folders, on which nobody's folder is removed
            fcntl.flock(lock, fcntl.LOCK_EX)
        if temporary.exists():  # another export may have taken it for abandoned before it was locked
            return temporary, lock
        os.close(lock)


def _remove_abandoned(path):
    pattern, found = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{12}}\.tmp"), []
    for folder in (path.parent, path):  # a first export was at work next to `path`, a further one inside it
        with contextlib.suppress(OSError):  # no folder, or one that may not be read
            found += [entry for entry in folder.iterdir() if pattern.fullmatch(entry.name)]
    for entry in found:
        with contextlib.suppress(OSError):  # locked by its owner, this process for one, or gone by now
            lock = os.open(entry, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _disk_in_one_line(parent):
    """Within the block a disk that is full, or may not be written, is one line, whatever library ran into it."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{parent} cannot be written ({error.strerror or reason_of(error)}). Free space there, or give another "
            "folder; nothing was written."
        ) from error
    except Exception as error:  # TensorFlow has a class of its own for a disk that is full, and h5py none
        if not any(reason in str(error) for reason in _FULL):
            raise
        raise UsageError(f"{parent} is full. Free space there, or give another folder; nothing was written.") from error


def check_new(path):
    """Raises where `path` exists: an ONNX folder is never overwritten nor mixed with another."""
    _check_name(path)
    if Path(path).exists() or Path(path).is_symlink():
        raise UsageError(f"{path} exists already. Give a new folder, or remove this one first.")


def check_versions(path):
    """Raises where `path` is something else than a folder of SavedModel versions (or nothing yet)."""
    _check_name(path)
    path = Path(path)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link to nothing. Give another folder.")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file. A SavedModel needs a folder; give another one.")
    entries = path.iterdir() if path.is_dir() else ()
    # Hidden ones are those of exports under way, or killed: no server looks at them.
    strangers = sorted(entry.name for entry in entries if not is_version(entry) and not entry.name.startswith("."))
    if strangers:
        raise UsageError(
            f"{path} is not a folder of SavedModel versions (it holds {strangers[0]}). Give a new folder, or one that "
            "an earlier export wrote."
        )


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
        newest = newest_version(path)
        version = path / str(1 if newest is None else int(newest.name) + 1)
        try:
            os.rename(temporary, version)  # fails where another export was quicker: its folder is not empty
            return version
        except OSError:
            if not version.exists():
                raise


def _check_name(path):
    if well_formed(str(path)) != str(path):
        raise UsageError(
            f"The path '{well_formed(str(path))}' is not UTF-8, as the libraries that write there need it. Give "
            "another folder."
        )
