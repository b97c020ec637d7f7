"""Files and folders as every part of the package takes them: strict JSON, numbered versions, parents that were made."""

import contextlib
import json
from pathlib import Path

from keras_attention.errors import UsageError

CURE = "Restore it, or make the folder again."
_NAMES = {dict: "a JSON object", list: "a JSON list"}


def read_json(path, kind=dict, cure=CURE):
    """The content of a JSON file.

    Args:
        path: the file, UTF-8.
        kind: `dict` or `list`, what the file must hold.
        cure: what to do about a file that is not so, for the message.

    Raises:
        UsageError: there is no such file, it cannot be read, it is no JSON, or holds something else.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. {cure}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}). {cure}") from None
    return parse_json(content, path, kind, cure)


def parse_json(content, origin, kind=dict, cure=CURE):
    """As `read_json`, of bytes that came from `origin`."""
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):  # also what is not UTF-8, and brackets without end
        found = None
    if not isinstance(found, kind):
        raise UsageError(f"{origin} is damaged: it is not {_NAMES[kind]}. {cure}")
    return found


def versions(folder):
    """The numbers of the versions in a folder, as servers see them: sub-folders named in ASCII digits.

    Args:
        folder: a path; one that is no folder has none.

    Returns:
        dict of number -> path.
    """
    folder = Path(folder)
    entries = folder.iterdir() if folder.is_dir() else ()
    return {int(entry.name): entry for entry in entries if is_version(entry)}


def newest_version(folder):
    """The path of the version with the highest number in a folder, or None."""
    return max(versions(folder).items(), default=(0, None))[1]


def is_version(entry):
    """Whether a path is the folder of one version."""
    return entry.name.isascii() and entry.name.isdigit() and entry.is_dir()


def absent(path):
    """The folders that must be made for `path` to be one: itself and its parents, as far as they are not there."""
    return [folder for folder in (Path(path), *Path(path).parents) if not folder.exists()]


def remove_empty(folders):
    """Removes those of the folders that are empty, innermost first, as `absent` lists them."""
    with contextlib.suppress(OSError):  # the first that holds something, and its parents, stay
        for folder in folders:
            folder.rmdir()
