"""The exact state of a training run in one file, and a folder of the last few of them.

A checkpoint is an `.npz` without pickled objects: the arrays in named groups, and the rest (position in the data,
history, best score) as JSON in the member `info`. Zip keeps a checksum for each member, and `info` says which arrays
must be there, so a file that was cut short or altered is recognised when it is read.
"""

import json
import re
import zipfile

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.training.run.run_folder import write_atomically

INFO = "info"
# What NumPy, zipfile and json raise for a file that is not what it should be.
_UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    NotImplementedError,
    zipfile.BadZipFile,
)


class DamagedCheckpoint(Exception):
    """A checkpoint file that is truncated, altered, or none at all."""


def read_variables(variables):
    """The values of Keras variables as NumPy arrays, in order."""
    return [np.asarray(variable) for variable in variables]


def assign_variables(variables, values, what):
    """Give Keras variables the stored values.

    Raises:
        UsageError: another number of variables or another shape, that is, a checkpoint of another model.
    """
    variables = list(variables)
    shapes = [tuple(variable.shape) for variable in variables]
    stored = [value.shape for value in values]
    if shapes != stored:
        differs = next((i for i, (a, b) in enumerate(zip(shapes, stored)) if a != b), min(len(shapes), len(stored)))
        wanted = f"{variables[differs].path} of shape {shapes[differs]}" if differs < len(shapes) else "nothing more"
        found = f"shape {stored[differs]}" if differs < len(stored) else "nothing more"
        raise UsageError(
            f"The checkpoint belongs to another model: its {what} holds {len(stored)} arrays for {len(shapes)} "
            f"variables, and at number {differs} {found} where the model has {wanted}. "
            "Resume with the options of the run."
        )
    for variable, value in zip(variables, values):
        variable.assign(value)


def write_checkpoint(path, groups, info):
    """Write one checkpoint, atomically.

    Args:
        path: the `.npz` file.
        groups: name -> list of arrays.
        info: what JSON can hold.
    """
    members, dtypes = {}, {}
    for group, arrays in groups.items():
        for index, array in enumerate(arrays):
            name = f"{group}/{index:04d}"
            dtypes[name] = array.dtype.name
            # NumPy writes bfloat16, which is none of its own types, as raw bytes of no type; as integers it comes back.
            members[name] = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    text = json.dumps({"info": info, "dtypes": dtypes}).encode()
    members[INFO] = np.frombuffer(text, np.uint8)

    def write(temporary):
        with open(temporary, "wb") as file:
            np.savez(file, **members)

    write_atomically(path, write)


def read_checkpoint(path):
    """Read one checkpoint whole.

    Returns:
        `(groups, info)` as they were written.

    Raises:
        DamagedCheckpoint: the file is missing, truncated, altered, or not a checkpoint.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(bytes(file[INFO]))
            groups = {}
            for name, dtype in header["dtypes"].items():
                array = file[name]
                if dtype == "bfloat16":
                    import ml_dtypes

                    array = array.view(ml_dtypes.bfloat16)
                groups.setdefault(name.split("/")[0], []).append(array)
            return groups, header["info"]
    except _UNREADABLE as error:
        raise DamagedCheckpoint(f"{path}: {error}") from error


class CheckpointFolder:
    """The last few checkpoints of a run.

    `step-<n>.npz` is the state after n batches, written at the same steps in every run with the same options;
    `stop-<n>.npz` is where a run was interrupted, and goes when the next regular one is there.

    Args:
        path: the folder, made when something is written.
        keep: how many regular checkpoints stay. At least 2, so that a damaged one has a predecessor.
    """

    def __init__(self, path, keep=2):
        self.path = path
        self.keep = max(2, keep)

    def _numbered(self, kind):
        found = []
        for path in self.path.glob(f"{kind}-*.npz"):
            match = re.fullmatch(rf"{kind}-(\d+)\.npz", path.name)
            if match:
                found.append((int(match[1]), path))
        return sorted(found)

    def regular(self):
        """Paths of the regular checkpoints, oldest first, without the one before the first batch."""
        return [path for step, path in self._numbered("step") if step > 0]

    def empty(self):
        """Whether no checkpoint was ever written here."""
        return not (self._numbered("step") or self._numbered("stop"))

    def save(self, step, groups, info, regular=True):
        """Write the state after `step` batches and remove what is no longer needed."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.path / f"{'step' if regular else 'stop'}-{step:08d}.npz", groups, info)
        if regular:
            old = self._numbered("step")[: -self.keep]
            for _, path in old + [found for found in self._numbered("stop") if found[0] <= step]:
                path.unlink(missing_ok=True)
        for leftover in self.path.glob(".*.tmp*"):  # of a process that was killed while writing
            leftover.unlink(missing_ok=True)

    def load_newest(self):
        """The newest state that can be read; a damaged file is set aside, with a printed line.

        Returns:
            `(groups, info)`, or None where no checkpoint was written yet.

        Raises:
            UsageError: there are checkpoints, but none can be read.
        """
        found = sorted(self._numbered("step") + self._numbered("stop"), reverse=True)
        for position, (_, path) in enumerate(found):
            try:
                return read_checkpoint(path)
            except DamagedCheckpoint:
                following = found[position + 1][1].name if position + 1 < len(found) else None
                if following is None:
                    break
                print(f"{path} is damaged (truncated or altered); falling back to {following}", flush=True)
                # Under another name it can neither be averaged nor be taken for the newest again.
                path.rename(path.with_name(path.name + ".damaged"))
        if found:
            raise UsageError(
                f"None of the checkpoints in {self.path} can be read: all are truncated or altered. "
                "Restore one from a copy, or train again in another folder."
            )
        return None
