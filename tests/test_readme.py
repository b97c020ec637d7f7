"""README: its Python runs, its commands exist, its table is the registry's."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from keras_attention.cli import build_app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_snippet_runs_and_prints_what_it_promises(capsys):
    for snippet in re.findall(r"```python\n(.*?)```", README, flags=re.S):
        exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "(2, 10, 64) True"


@pytest.mark.parametrize("line", re.findall(r"^    keras-attention (.+?)(?:  +#.*)?$", README, flags=re.M))
def test_every_command_line_is_one_of_the_program(line):
    words = shlex.split(line)
    command = typer.main.get_command(build_app())
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {flag for parameter in command.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_folder_map_names_every_folder():
    top = Path(__file__).parents[1]
    folder_map = README[README.index("## Folders") : README.index("## Results")]
    named = set(re.findall(r"`(?:keras_attention/)?([a-z_]+)`", folder_map))
    for folder in (top / "keras_attention").iterdir():
        # The old name of `pretrained` is for old programs.
        assert not (folder / "__init__.py").exists() or folder.name in named | {"checkpoints"}
    for folder in ("training", "export", "benchmarks", "examples", "tests"):
        assert (top / folder).is_dir() and f"`{folder}`" in README


def test_the_table_of_mechanisms_is_the_registry():
    from keras_attention.mechanisms import table

    assert table.replaced(README) == README, "run: python -m keras_attention.mechanisms.table README.md"
