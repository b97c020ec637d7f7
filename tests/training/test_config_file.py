"""--config: where options come from, which of two wins, and what is refused."""

import json
from dataclasses import dataclass

import pytest

from keras_attention.errors import UsageError
from keras_attention.training.run.command_arguments import training_command
from keras_attention.training.run.config_file import with_config_file
from keras_attention.training.run.run_options import RunOptions, option


@dataclass(frozen=True)
class SomeOptions(RunOptions):
    """Options with a name of two words."""

    d_model: int = option(12, "Width.", least=1)
    shuffle: bool = option(True, "Shuffle.")

    kind = "some"


def of(path, *words):
    """The options that the command makes of a file and a command line."""
    made = []

    def train(options):
        made.append(options)
        return {}

    training_command(SomeOptions, train, "Some.")[1](["--out", "x", "--config", str(path), *words])
    return made[0]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", {"d_model": 5, "shuffle": False, "epochs": 3}),
        ("a.toml", "d-model = 5\nshuffle = false\nepochs = 3  # passes\n"),
        (
            "config.json",
            {"kind": "some", "model": {}, "options": {"d_model": 5, "shuffle": False, "epochs": 3, "steps": None}},
        ),
    ],
)
def test_flags_win_over_the_file_and_the_file_over_defaults(write, name, content):
    path = write(name, content)
    assert of(path) == SomeOptions(out="x", d_model=5, shuffle=False, epochs=3)
    assert of(path, "--d-model", "7", "--shuffle") == SomeOptions(out="x", d_model=7, epochs=3)
    # Limits replace each other together: --steps 4 is not "4 steps or 3 epochs".
    assert of(path, "--steps", "4") == SomeOptions(out="x", d_model=5, shuffle=False, steps=4)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", {"d_modell": 5, "b": 1}, "a.json has b, d_modell, which this command does not know."),
        ("a.json", {"out": "y"}, "a.json has out, which this command does not know."),
        ("a.json", {"d_model": "5"}, "--d-model must be a whole number. Got '5'."),
        ("a.toml", "d_model = 0", "--d-model must be at least 1. Got 0."),
        ("a.toml", "d_model = ", "a.toml is no TOML ("),
        ("a.json", "[1]", "a.json is damaged: it is not a JSON object."),
        (
            "config.json",
            {"kind": "clip", "model": {}, "options": {}},
            "of a run of the kind clip, and this command trains",
        ),
        ("config.json", {"kind": "some", "model": {}, "options": []}, "`options` must be an object"),
    ],
)
def test_what_no_option_says_is_one_line(write, capsys, name, content, message):
    with pytest.raises(SystemExit) as end:
        of(write(name, content))
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == 1 and message in lines[0]


def test_a_file_that_is_not_there(tmp_path):
    for name in ("none.json", "none.toml"):
        with pytest.raises(UsageError, match=rf"{name} does not exist. Give a JSON or TOML file"):
            with_config_file(SomeOptions, tmp_path / name, {})
