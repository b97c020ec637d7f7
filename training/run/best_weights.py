"""The weights of the best validation of a run, on disk."""

from keras_attention.training.run.training_state import (
    DamagedCheckpoint,
    assign_variables,
    read_checkpoint,
    read_variables,
    write_checkpoint,
)


class BestWeights:
    """Keeps the variables that a model has at its best validation.

    Args:
        model: built model.
        path: the file for its variables.
    """

    def __init__(self, model, path):
        self.model = model
        self.path = path

    def offer(self, record, progress, rank):
        """Write the model's variables and replace `progress.best` by the record where it is better.

        Args:
            record: an epoch's numbers.
            progress: `Progress`.
            rank: function of a record; the larger is better, None where it cannot be compared.
        """
        if rank(record) is None or (progress.best is not None and rank(record) <= rank(progress.best)):
            return
        best = {name: value for name, value in record.items() if name != "train_seconds"}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.path, {"model": read_variables(self.model.variables)}, best)
        progress.best = best

    def restore(self, best):
        """Give the model the variables of `progress.best`; False, with a printed line, where they are lost."""
        try:
            groups, record = read_checkpoint(self.path)
            found = record["steps"]
        except DamagedCheckpoint:
            found = None
        if found != best["steps"]:
            print(
                f"{self.path} does not hold the best model (of step {best['steps']}); using the last one",
                flush=True,
            )
            return False
        assign_variables(self.model.variables, groups["model"], "best model")
        return True
