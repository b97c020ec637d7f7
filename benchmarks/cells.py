"""Measured figures kept on disk, so that an interrupted benchmark goes on where it was."""

import json
from pathlib import Path

from benchmarks.harness import replace_file


class Cells:
    """A JSON file of name -> figure, written after each one.

    Args:
        path: the file.
        settings: what the figures depend on, anything that JSON holds.
        resume: whether to go on with a file of the same settings; otherwise the figures there are measured again.

    Raises:
        ValueError: `resume` with a file that was made with other settings.
    """

    def __init__(self, path, settings, resume):
        self.path = Path(path)
        self.settings = json.loads(json.dumps(settings))
        self._found = {}
        if resume and self.path.exists():
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            if stored["settings"] != self.settings:
                raise ValueError(
                    f"{self.path} holds figures of other settings: {stored['settings']}. Leave --resume out."
                )
            self._found = stored["figures"]

    def once(self, name, measure, *arguments):
        """The figure of this name; `measure(*arguments)` makes it, of what JSON holds, where it is not there yet."""
        if name not in self._found:
            self._found[name] = json.loads(json.dumps(measure(*arguments)))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json.dumps({"settings": self.settings, "figures": self._found}, indent=1))
        return self._found[name]
