"""Puts pip into a virtual environment where Python came without `ensurepip`, as Debian's does without python3-venv.

    python3 -m venv --without-pip .venv && .venv/bin/python .ci/bootstrap_pip.py

The newest pip is taken from the package index, checked against the hash that the index names, and installs itself.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

INDEX = "https://pypi.org/simple/pip/"
AS_JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
WHEEL = re.compile(r"pip-(\d+(?:\.\d+)*)-py3-none-any\.whl")  # no pre-releases


def newest(files):
    """The entry of the highest released version."""
    wheels = [file for file in files if WHEEL.fullmatch(file["filename"]) and not file.get("yanked")]
    return max(wheels, key=lambda file: [int(n) for n in WHEEL.fullmatch(file["filename"])[1].split(".")])


def main():
    """Downloads the wheel and lets it install itself; one line and exit code 2 where that fails."""
    try:
        with urllib.request.urlopen(urllib.request.Request(INDEX, headers=AS_JSON), timeout=60) as answer:
            wheel, base = newest(json.load(answer)["files"]), answer.url
        with urllib.request.urlopen(urllib.parse.urljoin(base, wheel["url"]), timeout=120) as answer:
            content = answer.read()
    except (OSError, KeyError, ValueError) as error:
        print(f"pip could not be fetched from {INDEX} ({error}): apt-get install python3-venv", file=sys.stderr)
        return 2
    if hashlib.sha256(content).hexdigest() != wheel["hashes"]["sha256"]:
        print(f"{wheel['filename']} arrived damaged: call make again", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / wheel["filename"]
        path.write_bytes(content)
        # A wheel is a zip file, from which Python can run the package inside.
        install = [sys.executable, str(path / "pip"), "install", "--quiet", "--no-index", str(path)]
        return subprocess.run(install, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
