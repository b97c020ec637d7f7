"""Validation between epochs, and the best model so far on disk."""

from keras_attention.training.optimization.weight_averages import moving_average
from keras_attention.training.run.training_state import (
    DamagedCheckpoint,
    assign_variables,
    read_checkpoint,
    read_variables,
    write_checkpoint,
)


class Validation:
    """Numbers of the validation data after an epoch, of the averaged weights where the optimizer keeps an average.

    The best model is the one with the largest `judged_by` among the epochs that have it; of equals the one with the
    lower loss.

    Args:
        model: compiled model.
        best_path: the file for the best model's variables.
        measure: function `(epoch, last)` that returns the numbers of the epoch by name, "loss" among them, or {} where
            there are none; `epoch` counts from 1, `last` is True when training ends there.
        judged_by: name of a number, or None: the loss alone decides.
    """

    def __init__(self, model, best_path, measure, judged_by=None):
        self.model, self.best_path, self.measure, self.judged_by = model, best_path, measure, judged_by

    def __call__(self, record, last, progress):
        """Add `val_...` values to the epoch's record, and replace `progress.best` by it where it is better."""
        with moving_average(self.model):
            found = self.measure(record["epoch"], last)
            record.update({f"val_{name}": value for name, value in found.items()})
            if found and self._is_better(record, progress.best):
                best = {name: value for name, value in record.items() if name != "train_seconds"}
                self.best_path.parent.mkdir(parents=True, exist_ok=True)
                write_checkpoint(self.best_path, {"model": read_variables(self.model.variables)}, best)
                progress.best = best

    def _is_better(self, record, best):
        rank = self._rank(record)
        return rank is not None and (best is None or rank > self._rank(best))

    def _rank(self, record):
        """What makes one record better than another, larger is better; None for one that cannot be compared."""
        loss = record["val_loss"]
        if loss != loss:  # NaN
            return None
        if self.judged_by is None:
            return (-loss,)
        judged = record.get(f"val_{self.judged_by}")
        return None if judged is None else (judged, -loss)

    def restore(self, best):
        """Give the model the variables of `progress.best`; False, with a printed line, where they are lost."""
        try:
            groups, record = read_checkpoint(self.best_path)
            found = record["steps"]
        except DamagedCheckpoint:
            found = None
        if found != best["steps"]:
            print(
                f"{self.best_path} does not hold the best model (of step {best['steps']}); using the last one",
                flush=True,
            )
            return False
        assign_variables(self.model.variables, groups["model"], "best model")
        return True
