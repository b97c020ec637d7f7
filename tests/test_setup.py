"""How `make` gets a virtual environment, whatever the machine has: .ci/make_venv.sh with stand-ins for its programs."""

import os
import subprocess
from pathlib import Path

import pytest
from source_tree import ROOT

SCRIPT = ROOT / ".ci" / "make_venv.sh"
WITHOUT_ENSUREPIP = 'case "$*" in *ensurepip*) [ -e "$0.installed" ];; *) echo "python $*";; esac'


def run(tmp_path, python, **programs):
    """The script's end, where the machine has just these programs, each with the body of a shell script."""
    for name, body in {"python": python, "id": "echo 1000", **programs}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", SCRIPT, tmp_path / "python", "there"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )


def test_venv_is_taken_where_python_has_ensurepip(tmp_path):
    done = run(tmp_path, 'case "$*" in *ensurepip*) ;; *) echo "python $*";; esac', virtualenv="echo virtualenv $*")
    assert (done.returncode, done.stdout) == (0, "python -m venv there\n")


@pytest.mark.parametrize(
    "name, wanted", [("virtualenv", "--quiet --python {} there"), ("uv", "venv --quiet --seed --python {} there")]
)
def test_other_programs_are_taken_where_it_has_none(tmp_path, name, wanted):
    done = run(tmp_path, WITHOUT_ENSUREPIP, **{name: f'echo "{name} $*"'})
    assert (done.returncode, done.stdout) == (0, f"{name} {wanted.format(tmp_path / 'python')}\n")


def test_debians_package_is_installed_as_root_and_said(tmp_path):
    """The first install fails, as it does where no list of packages is there yet."""
    python = tmp_path / "python"
    apt = f'case "$1" in update) echo > "$0.listed";; *) [ -e "$0.listed" ] && echo > {python}.installed;; esac'
    done = run(tmp_path, WITHOUT_ENSUREPIP, **{"id": "echo 0", "apt-get": apt})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{python} has no ensurepip: installing Debian's python3-venv",
        "python -m venv there",
    ]


@pytest.mark.parametrize("programs", [{}, {"apt-get": "exit 0"}, {"id": "echo 0", "apt-get": "exit 100"}], ids=str)
def test_one_line_says_what_is_missing(tmp_path, programs):
    done = run(tmp_path, WITHOUT_ENSUREPIP, **programs)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{tmp_path / 'python'} has no ensurepip and cannot make a virtual environment: install python3-venv (Debian), "
        "virtualenv or uv"
    ]


def test_no_address_of_a_package_index_is_in_the_project():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    signs = ("/simp" + "le/", "/whl" + "/", "INDEX" + "_URL", "index-" + "url")  # in parts: this file is looked at too
    for name in filter(None, listed.stdout.split("\0")):
        path = Path(ROOT, os.fsdecode(name))
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            text = content.decode("utf-8", "replace")
            assert not [sign for sign in signs if sign in text], name
