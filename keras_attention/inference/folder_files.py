"""Checks of a folder's files that end in one clear line."""

import json

from keras_attention.errors import UsageError


def require_files(folder, names, kind, cure="restore the file, or make the folder again"):
    """Raise a `UsageError` that names the first of `names` missing from `folder`, a `kind` as its owner knows it."""
    for name in names:
        if not (folder / name).is_file():
            raise UsageError(f"{folder} has no {name}. Expected {kind} with {', '.join(names)}: {cure}.")


def read_json_object(path):
    """The dict in a JSON file; a `UsageError` names a file that holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # also what is not UTF-8
        content = None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is damaged: it is not a JSON object. Restore it, or make the folder again.")
    return content


def unreadable(path, error):
    """The `UsageError` for a file of which a library said `error`, whatever the library's class for it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UsageError(f"{path} cannot be read ({lines[0][:200]}). Restore it, or make the folder again.")
