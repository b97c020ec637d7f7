"""The folder of one training run: what is in it, written so that it is never half there, and read with clear errors."""

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path

from keras_attention.errors import UsageError
from keras_attention.files import absent, read_json, remove_empty
from keras_attention.inference.keras_models import load_keras_model

_CURE = "Restore it from a copy."


def write_atomically(path, write):
    """Fill a file so that readers, and a process killed at any moment, find the old content or the new, never a part.

    The content goes to a hidden file in the same folder, to the disk, and only then under its name.

    Args:
        path: the file to write or replace.
        write: function of the temporary path that writes the content there. The temporary name has the suffix of
            `path`, which some writers go by.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself must survive a power cut
    finally:
        os.close(folder)


class RunFolder:
    """One training run on disk. Every piece can be read alone.

    - `config.json`: the kind and the options of the run, the model's config, the versions it was made with.
    - `tokenizer.model`: a SentencePiece model.
    - `model.keras`: the finished model, not compiled.
    - `history.json`: a list with one record (name -> number) for each epoch.
    - `metrics.json`: name -> number; see `fit_in_folder`.
    - `checkpoints/`: what `--resume` needs; `logs/`: TensorBoard's files.

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.tokenizer_path = self.path / "tokenizer.model"
        self.model_path = self.path / "model.keras"
        self.history_path = self.path / "history.json"
        self.metrics_path = self.path / "metrics.json"
        self.checkpoints_path = self.path / "checkpoints"
        self.logs_path = self.path / "logs"

    def __str__(self):
        return str(self.path)

    @contextmanager
    def claimed(self, resume):
        """Hold the folder for one process: a new one for a new run, one with a run in it for `resume`.

        The lock goes away with the process, however that ends.

        Raises:
            UsageError: another process trains here; a new run would overwrite what is there; there is no run to resume.
        """
        try:
            is_new = not self.path.exists()
        except OSError as error:  # a parent that may not be entered, a name that is too long
            raise UsageError(f"{self.path} cannot be reached ({error.strerror}). Give another --out.") from None
        if not is_new and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file. The run needs a folder; give another --out.")
        self._check_content(resume)
        made = absent(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "a")  # noqa: SIM115 closed below, after the caller's block
        except OSError as error:
            remove_empty(made)
            raise UsageError(f"{self.path} cannot be written ({error.strerror}). Give another --out.") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"Another process is training in {self.path}. Wait for it, or use another --out."
                ) from None
            self._check_content(resume)  # again: another process may have been faster until the lock was ours
            try:
                yield
            finally:
                # After an error before the run began, nothing stays.
                if [entry.name for entry in self.path.iterdir()] == [".lock"]:
                    (self.path / ".lock").unlink()
                    remove_empty(made)

    def _check_content(self, resume):
        if resume:
            self.config_to_resume()
        elif self.path.is_dir():
            self._refuse_to_overwrite()

    def _refuse_to_overwrite(self):
        if self.config_path.exists():
            raise UsageError(
                f"{self.path} already holds a training run. Use --resume to continue it, or another --out."
            )
        # A run that was killed before its config was there has left nothing but hidden files.
        strangers = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        if strangers:
            raise UsageError(
                f"{self.path} is not empty (it holds {strangers[0]}). A run starts in a new or empty folder; "
                "give another --out."
            )

    def write_json(self, path, content):
        """Write `content` as JSON under `path`, atomically."""
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=True) + "\n"
        # Bytes of a file's name that are no UTF-8 come as lone surrogates: written as JSON's escapes they come back.
        content = text.encode("utf-8", "backslashreplace")
        write_atomically(path, lambda temporary: temporary.write_bytes(content))

    def config_to_resume(self):
        """The run's config.json as a dict; a run that was ended before it was written has nothing to resume."""
        if not self.path.exists():
            raise UsageError(f"{self.path} does not exist. There is no run to resume; leave --resume out to start one.")
        begun = (self.config_path, self.checkpoints_path, self.history_path, self.model_path)
        if not any(path.exists() for path in begun):
            raise UsageError(
                f"{self.path} has no config.json: no run has begun there. Start it again without --resume."
            )
        return self.read_config()

    def read_config(self):
        """The run's config.json as a dict."""
        return read_json(self.require(self.config_path), dict, _CURE)

    def read_history(self):
        """The run's history.json as a list of records."""
        return read_json(self.require(self.history_path), list, _CURE)

    def read_metrics(self):
        """The run's metrics.json as a dict of numbers."""
        return read_json(self.require(self.metrics_path), dict, _CURE)

    def require(self, path):
        """`path`, if it is there; otherwise the error that names what is missing from the folder."""
        if not self.path.is_dir():
            raise UsageError(f"{self.path} does not exist. Expected a run folder, as `train` writes it.")
        if not path.is_file():
            raise UsageError(
                f"{self.path} has no {path.name}. Expected a run folder, as `train` writes it; "
                + ("let the run finish (--resume)." if self._unfinished(path) else "restore the file from a copy.")
            )
        return path

    def _unfinished(self, path):
        return path in (self.model_path, self.metrics_path, self.history_path) and self.config_path.is_file()

    def load_model(self):
        """The finished model, not compiled."""
        return load_keras_model(self.require(self.model_path))
