"""What an export says about itself, and the comparison with Keras behind it."""

import dataclasses
import datetime
import json
from pathlib import Path

import numpy as np

import keras_attention
from keras_attention.errors import UsageError

# Of the largest number compared (1 at least): two programs that round alike differ by far less, a wrong one by more.
_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        path: the folder that was written; for a SavedModel the folder of the version.
        largest_difference: the largest absolute difference of a number from Keras' own in the check.
        differences: what was compared -> its largest difference.
        signatures: names of a SavedModel's signatures, or of an ONNX folder's files.
    """

    path: Path
    largest_difference: float
    differences: dict
    signatures: tuple

    def __str__(self):
        parts = ", ".join(f"{what} {difference:.1e}" for what, difference in self.differences.items())
        return f"{self.path}: checked against Keras, largest difference {self.largest_difference:.1e} ({parts})"


class Comparison:
    """Collects differences between an export and Keras, and refuses those that are too large.

    Args:
        compute_dtype: name of the dtype the model computes in, which says what rounding may do.
        nan_is_meant: whether Keras' own numbers may be NaN in places. Where all are, nothing can be compared.
    """

    def __init__(self, compute_dtype, *, nan_is_meant=False):
        self.nan_is_meant = nan_is_meant
        self.tolerance = _TOLERANCE.get(compute_dtype, 1e-4)
        self.differences = {}

    def numbers(self, what, got, want):
        """Notes the largest difference of two arrays; NaN equals NaN and text itself alone, other shapes are errors."""
        got, want = np.asarray(got), np.asarray(want)
        if got.shape != want.shape:
            raise UsageError(
                f"The export failed its check: {what} has shape {got.shape}, Keras' {want.shape}; nothing was written."
            )
        if want.dtype.kind in "OSU":
            if not np.array_equal(got, want):
                raise UsageError(f"The export failed its check: the text of {what} differs. Nothing was written.")
            self.differences.setdefault(what, 0.0)
            return
        got, want = got.astype(np.float64), want.astype(np.float64)
        nan = np.isnan(want)
        if nan.all() and nan.size if self.nan_is_meant else nan.any():
            raise UsageError(
                f"The export failed its check: {what} is NaN in Keras itself: there is nothing to compare with. Mend "
                "the model, or let it compute in a wider dtype. Nothing was written."
            )
        same = (got == want) | (np.isnan(got) & nan)  # an infinity equals itself
        difference = float(np.max(np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, want)), initial=0.0))
        scale = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0)))
        if not difference <= self.tolerance * scale:  # so that NaN fails
            raise UsageError(
                f"The export failed its check: {what} differs from Keras by {difference:.3g}, allowed is "
                f"{self.tolerance * scale:.3g}. Nothing was written."
            )
        self.differences[what] = max(difference, self.differences.get(what, 0.0))

    def answers(self, what, got, want, rescore):
        """Compares whole answers, each a dict with "tokens" [B, N], "lengths" [B] and "scores" [B].

        Rows with other tokens pass only in a tie that rounding decided: where Keras, too, gives the export's tokens
        the score of its own answer.

        Args:
            what: for the report.
            got, want: the answers of the export and of Keras.
            rescore: function `(tokens [B, N], lengths [B])` that returns Keras' scores [B] of any answers.
        """
        got, want = ({name: np.asarray(x) for name, x in answer.items()} for answer in (got, want))
        rows = range(len(want["lengths"]))
        tokens = [[answer["tokens"][row][: answer["lengths"][row]].tolist() for row in rows] for answer in (got, want)]
        self.numbers(f"{what}: scores", got["scores"], want["scores"])
        different = [row for row in rows if tokens[0][row] != tokens[1][row]]
        if not different:
            return
        rescored = np.asarray(rescore(got["tokens"], got["lengths"]))
        for row in different:
            score = float(want["scores"][row])
            if not abs(float(rescored[row]) - score) <= self.tolerance * max(1.0, abs(score)):
                raise UsageError(
                    f"The export failed its check: {what} of row {row} is {tokens[0][row]}, Keras gives "
                    f"{tokens[1][row]}. Nothing was written."
                )

    @property
    def largest(self):
        return max(self.differences.values(), default=0.0)


def write_description(path, kind, options, comparison, **more):
    """Writes export.json, for people and for our own loaders.

    Args:
        path: of the file.
        kind: "saved_model" or "onnx".
        options: dict, what the export was made with.
        comparison: `Comparison`.
        more: what this kind of folder says beside.
    """
    content = {
        "kind": kind,
        "keras_attention": keras_attention.__version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **more,
        "options": options,
        "differences_from_keras": comparison.differences,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
