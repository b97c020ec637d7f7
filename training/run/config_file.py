"""Options from a file: JSON or TOML, or the config.json of a run."""

import tomllib
from dataclasses import fields
from pathlib import Path

from keras_attention.errors import UsageError
from keras_attention.files import read_json
from keras_attention.inference.folders import run_kind

LIMITS = {"epochs", "steps", "minutes"}


def with_config_file(options_class, path, given):
    """The options of the command line on top of those of a file.

    Args:
        options_class: subclass of `RunOptions`.
        path: a .toml file, or a JSON file with an object: option names (`d_model` or `d-model`) -> values, or what
            training writes as config.json, whose options are taken.
        given: dict of the options that stood on the command line. A limit among them (epochs, steps, minutes) replaces
            those of the file together.

    Raises:
        UsageError: the file cannot be read, is of another kind of run, or has names that are no option.
    """
    content = _read(Path(path))
    if "options" in content and "model" in content:
        if run_kind(content) != options_class.kind:
            raise UsageError(
                f"{path} is of a run of the kind {run_kind(content)}, and this command trains the kind "
                f"{options_class.kind}. Give the file of such a run."
            )
        content = content["options"]
        if not isinstance(content, dict):
            raise UsageError(f"{path} is damaged: `options` must be an object. Restore it from a copy.")
    stored = {name.replace("-", "_"): value for name, value in content.items()}
    known = {each.name for each in fields(options_class)} - {"out", "resume"}
    strange = sorted(set(stored) - known)
    if strange:
        raise UsageError(
            f"{path} has {', '.join(strange)}, which this command does not know. See --help for its options."
        )
    if LIMITS & set(given):
        stored = {name: value for name, value in stored.items() if name not in LIMITS}
    return {**stored, **given}


def _read(path):
    if path.suffix != ".toml":
        return read_json(path, dict, "Give a JSON or TOML file with options of this command.")
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Give a JSON or TOML file with options of this command.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise UsageError(f"{path} is no TOML ({error}).") from None
