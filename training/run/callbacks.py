"""What happens around the steps of `model.fit`: exact checkpoints, validation, the budget, the progress bar."""

import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields

import keras
import numpy as np

from keras_attention.errors import UsageError
from keras_attention.training.run.training_state import assign_variables, read_variables


@dataclass
class Progress:
    """Where a run stands. Together with the variables it is the whole state of the run.

    Attributes:
        epoch: the running epoch, from 0.
        step: batches of it that are done. As many as the epoch has, while its validation is still to come.
        steps: batches done since the beginning.
        validated: the value of `steps` at the last validation.
        train_seconds: time spent in training steps.
        seconds: time spent in all, with validation and checkpoints.
        best: the record of the best validation so far, or None.
        history: one record for each epoch.
    """

    epoch: int = 0
    step: int = 0
    steps: int = 0
    validated: int = -1
    train_seconds: float = 0.0
    seconds: float = 0.0
    best: dict | None = None
    history: list = field(default_factory=list)

    @classmethod
    def restored(cls, info):
        """The progress that a checkpoint's info holds."""
        known = {each.name: info[each.name] for each in fields(cls) if each.name in info}
        whole, number, record = (int,), (int, float), (dict, type(None))
        kinds = dict.fromkeys(("epoch", "step", "steps", "validated"), whole)
        kinds |= {"train_seconds": number, "seconds": number, "best": record, "history": (list,)}
        for name, value in known.items():
            records = value if name == "history" and isinstance(value, list) else []
            if not (isinstance(value, kinds[name]) and all(isinstance(each, dict) for each in records)):
                raise UsageError(
                    f"The newest checkpoint is damaged: its {name} is not what training writes. Restore the file from "
                    "a copy, or remove it to go on from the one before."
                )
        progress = cls(**known)
        # Earlier builds wrote val_BLEU and val_chrF.
        progress.history = [_lower_case(record) for record in progress.history]
        progress.best = progress.best and _lower_case(progress.best)
        return progress


@dataclass(frozen=True)
class Budget:
    """When training ends: whichever limit is reached first; None is no limit."""

    epochs: int | None = None
    steps: int | None = None
    minutes: float | None = None

    def spent(self, progress):
        """Whether a limit is reached."""
        return (
            (self.epochs is not None and progress.epoch >= self.epochs)
            or (self.steps is not None and progress.steps >= self.steps)
            # Files and libraries take time before the first step, without which there is nothing to keep.
            or (self.minutes is not None and progress.steps > 0 and progress.seconds >= 60 * self.minutes)
        )

    def share(self, progress, steps_per_epoch):
        """How much of the budget is used, from 0 to 1: by the limit that is nearest."""
        shares = []
        if self.epochs is not None:
            shares.append((progress.epoch * steps_per_epoch + progress.step) / (self.epochs * steps_per_epoch))
        if self.steps is not None:
            shares.append(progress.steps / self.steps)
        if self.minutes is not None:
            shares.append(progress.seconds / (60 * self.minutes))
        return min(1.0, max(shares, default=0.0))


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM); everything up to the last step is saved."""

    exit_code = 143


class ResumableTraining(keras.callbacks.Callback):
    """Keeps a run's exact state on disk, so that stopping it at any moment does not change its result.

    It must be the first callback: it counts a step as done as soon as that step's update is made.

    The state is saved after every `checkpoint_every` steps, after the last step of an epoch (validation still to come),
    after the validation, and on Ctrl-C or SIGTERM, which wait for the running step; a second Ctrl-C does not. What a
    step changed without having been counted is never saved.

    Keras' epoch loop cannot begin in the middle of an epoch, so this callback ends each epoch itself after its last
    step: it sets `stop_training`, which leaves Keras' inner loop, and takes it back in `on_epoch_end`, which Keras
    calls before it would leave the outer one.

    Args:
        progress: `Progress`, changed in place.
        checkpoints: `CheckpointFolder`.
        steps_per_epoch: batches in each whole epoch.
        metrics: the compiled metrics whose running values belong to the state; the first has `count`,
            the number of tokens or images that it has seen.
        budget: `Budget`.
        validate: function `(record, last, progress)` that adds the validation's numbers to the epoch's record and
            replaces `progress.best` by it where it is better; `last` is True when training ends here.
        checkpoint_every: steps between two checkpoints.
        counted: what the first metric's `count` is called in the epoch's record.
        restored_metrics: their values at the restored position, or None.
    """

    def __init__(
        self,
        progress,
        checkpoints,
        *,
        steps_per_epoch,
        metrics,
        budget,
        validate,
        checkpoint_every,
        counted="tokens",
        restored_metrics=None,
    ):
        super().__init__()
        self.progress = progress
        self.checkpoints = checkpoints
        self.steps_per_epoch = steps_per_epoch
        self.metrics = metrics
        self.budget = budget
        self.validate = validate
        self.checkpoint_every = checkpoint_every
        self.counted = counted
        self._pending_metrics = restored_metrics
        self._saved_at = None
        self._in_step = False  # the weights may be ahead of the counters
        self._in_epoch = False  # the metrics hold the training values of the running epoch
        self._signal = None
        self._clock = time.monotonic()

    # --- state ----------------------------------------------------------------------------------------------------

    def save(self, regular=True, metric_values=None):
        """Write the state as it is now; refuses (`UsageError`) one whose weights are NaN or infinite."""
        self._count_time()
        if metric_values is None:
            metric_values = self._metric_values()
        weights = read_variables(self.model.variables)
        if not all(np.isfinite(array).all() for array in weights):
            raise UsageError(
                f"Training diverged: after step {self.progress.steps} the weights are not finite. Train again with a "
                "lower --learning-rate or a longer --warmup; the checkpoints before that step are kept."
            )
        groups = {
            "model": weights,
            "optimizer": read_variables(self.model.optimizer.variables),
            "metrics": metric_values,
        }
        self.checkpoints.save(self.progress.steps, groups, asdict(self.progress), regular)
        self._saved_at = (self.progress.steps, self.progress.epoch)

    def save_if_counted(self):
        """On an interruption: write the state if it is known exactly, and say whether the last step is saved.

        Between the end of an epoch's steps and its next checkpoint there is nothing to add: validation is done again.
        """
        if self._in_epoch and not self._in_step and self._saved_at != (self.progress.steps, self.progress.epoch):
            self.save(regular=False)
        return self._saved_at is not None and self._saved_at[0] == self.progress.steps

    def _epoch_is_whole(self):
        return self.progress.step >= self.steps_per_epoch

    def _metric_values(self):
        return read_variables(v for metric in self.metrics for v in metric.variables)

    def _restore_metrics(self):
        if self._pending_metrics is not None and self.progress.step > 0:
            variables = [v for metric in self.metrics for v in metric.variables]
            # Earlier builds also kept, at the end, the top-5 accuracy of five classes and fewer.
            assign_variables(variables, self._pending_metrics[: len(variables)], "metrics")
        self._pending_metrics = None

    def _count_time(self):
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self._clock = now

    @contextmanager
    def signals(self):
        """While this lasts, Ctrl-C and SIGTERM wait for the running step and its bookkeeping."""

        def on_signal(number, frame):
            if self._in_step and self._signal is None:
                self._signal = number
                with suppress(RuntimeError):  # the signal may have come in the middle of another print
                    print("\nstopping after this step; press Ctrl-C again to stop at once", flush=True)
            else:
                raise _interruption(number)

        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, on_signal)
        except ValueError:  # not the main thread: signals go elsewhere
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- Keras' calls ---------------------------------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        self._clock = time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has just reset the metrics; in the middle of an epoch they go on from their saved values.
        self._restore_metrics()
        self._in_epoch = True

    def on_train_batch_begin(self, batch, logs=None):
        self._in_step = True
        self._step_began = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.progress.step += 1
        self.progress.steps += 1
        self.progress.train_seconds += time.monotonic() - self._step_began
        self._count_time()
        ends = self._epoch_is_whole() or self.budget.spent(self.progress)
        if ends or self.progress.steps % self.checkpoint_every == 0:
            self.save()
        if ends:
            self.model.stop_training = True
        self._in_step = False
        if self._signal is not None:
            raise _interruption(self._signal)

    def on_epoch_end(self, epoch, logs=None):
        self._in_epoch = False
        whole = self._epoch_is_whole()
        over = self.finish_epoch({} if logs is None else logs)
        # An epoch that ended early without the budget being spent was ended by a callback of the user.
        self.model.stop_training = over or not whole

    def finish_interrupted_epoch(self):
        """Before `fit`: the validation that an interruption cut off, from the state saved before it.

        Returns:
            `(over, logs)`: whether training is over, and the epoch's values, or None where no validation was open.
        """
        progress = self.progress
        over = self.budget.spent(progress)
        if progress.validated == progress.steps or progress.step == 0 or not (over or self._epoch_is_whole()):
            return over, None
        self._restore_metrics()
        logs = {metric.name: float(metric.result()) for metric in self.metrics}
        return self.finish_epoch(logs), logs

    def finish_epoch(self, logs):
        """Validation and the checkpoint after it.

        Args:
            logs: the epoch's training values by name; the validation's are added.

        Returns:
            bool: whether training ends here.
        """
        progress = self.progress
        # Validation uses the same metrics. Keras resets them only once it has built them, not after a restored epoch.
        count = round(float(self.metrics[0].count))
        metric_values = self._metric_values()
        for metric in self.metrics:
            metric.reset_state()
        whole = self._epoch_is_whole()
        record = {
            "epoch": progress.epoch + 1,
            "steps": progress.steps,
            **{name: float(value) for name, value in logs.items()},
            "learning_rate": float(self.model.optimizer.learning_rate),
            self.counted: count,
            "train_seconds": progress.train_seconds,
        }
        after = Progress(**{**vars(progress), "epoch": progress.epoch + whole})
        last = self.budget.spent(after)
        self.validate(record, last, progress)
        logs.update({name: value for name, value in record.items() if name.startswith("val_")})
        # A run that was ended inside this epoch and is now longer replaces the record of the part.
        progress.history = [r for r in progress.history if r["epoch"] != record["epoch"]] + [record]
        progress.validated = progress.steps
        if whole:
            progress.epoch, progress.step = progress.epoch + 1, 0
        self.save(metric_values=metric_values)
        # Validation takes time, which may have used up a budget of minutes that was not spent before it.
        return last or self.budget.spent(progress)


def _lower_case(record):
    return {name.lower(): value for name, value in record.items()}


def _interruption(number):
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
