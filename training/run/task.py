"""What a kind of model brings to a run: its data, its model and how good that is."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """What a run trains on, read and split.

    Attributes:
        batches: `len(batches)` is the number of batches in an epoch, `batches.dataset(epoch, step)` the
            `tf.data.Dataset` of that epoch's batches from number `step` on and of the epochs after it.
        fingerprint: a digest of the data; a run goes on with equal data only.
        origin: where they came from, in words.
        sizes: split -> how much it holds.
        tokenizer: what `tokenizer.model` is saved from, or None.
        config: what else config.json says of the data.
        peak_learning_rate: where the learning rate is to rise to this and then to fall along a cosine to 0 at the end
            of the budget; None where the optimizer has a schedule of its own.
    """

    batches: object
    fingerprint: str
    origin: str
    sizes: dict
    tokenizer: object = None
    config: dict = field(default_factory=dict)
    peak_learning_rate: float | None = None


class Task:
    """What is trained, as `fit_in_folder` takes it: a subclass for each kind of model gives the methods that raise.

    They are called in the order of this class, and each is given what the ones before returned.

    Args:
        options: a `RunOptions`.

    Attributes:
        counted: what the count of the first metric is called in history.json and config.json.
        checkpoints_kept: how many checkpoints stay on disk.
    """

    counted = "tokens"
    checkpoints_kept = 2

    def __init__(self, options):
        self.options = options

    def read(self, folder):
        """Read the data.

        Args:
            folder: the `RunFolder` of a run that goes on, whose tokenizer is to be used; None for one that begins.

        Returns:
            `TaskData`.
        """
        raise NotImplementedError

    def build(self, data):
        """`(model, metrics)`: the compiled model, built with its optimizer, and its metrics, the loss first.

        What the model cannot do should raise ValueError or TypeError here, not after an epoch.
        """
        raise NotImplementedError

    def validation(self, data, model, best_path):
        """The `Validation` between epochs; `best_path` is the file for the best model's variables."""
        raise NotImplementedError

    def choose_weights(self, model, validation, progress, checkpoints):
        """Give the trained model the weights that are kept: those of the best validation where there is one.

        Returns:
            The record of that validation, or None where the weights are others.
        """
        if progress.best is not None and validation.restore(progress.best):
            print(f"using the best model, of step {progress.best['steps']}")
            return progress.best
        if progress.best is None:
            # Keras has put averaged weights in at the end of `fit`, but not where a resumed one had nothing to do.
            model.optimizer.finalize_variable_values(model.trainable_variables)
        return None

    def score(self, data, model, folder, kept):
        """How good the finished model is; files about that go into the folder.

        Args:
            folder: `RunFolder`.
            kept: the record of the best validation where the model has its weights, or None.

        Returns:
            dict: split ("validation", "test") -> name -> number.
        """
        raise NotImplementedError
