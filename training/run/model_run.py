"""One run of `model.fit` in a run folder: what training of every kind of model shares.

A kind of model says what it trains on and how good it is (`ModelRun`'s hooks); the steps, exact checkpoints, limits,
validation, choice of the best weights and the files are here, once.
"""

import importlib.util
import sys
from dataclasses import fields

import keras

from keras_attention.errors import UsageError
from keras_attention.training.optimization.compiling import dtype_policy, versions
from keras_attention.training.run.callbacks import Budget, Progress, ResumableTraining
from keras_attention.training.run.progress_bar import EpochProgress
from keras_attention.training.run.run_folder import RunFolder, write_atomically
from keras_attention.training.run.training_state import CheckpointFolder, assign_variables


def run_in_folder(options, make, *, checkpoints_kept=2):
    """Train in the folder `options.out`, or say that the run there is finished.

    With equal options and data the weights are the same in every run on one machine, however often a run was
    interrupted (Ctrl-C, kill -9, power cut) and resumed; a limit of minutes alone makes the number of steps vary.

    Args:
        options: a `RunOptions`.
        make: function `(folder, state)` that returns the `ModelRun`.
        checkpoints_kept: how many checkpoints stay on disk.

    Returns:
        dict, the content of metrics.json.

    Raises:
        UsageError: bad options or data, a folder that is taken, a run that cannot be resumed.
        KeyboardInterrupt: Ctrl-C; the state is saved.
    """
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError("TensorBoard's files need its package: pip install tensorboard, or give --no-tensorboard.")
    folder = RunFolder(options.out)
    with folder.claimed(options.resume), dtype_policy(options.precision):
        state = None
        if options.resume:
            stored = folder.read_config()
            options.refuse_changes(stored.get("options", {}))
            state = _restorable_state(folder, checkpoints_kept)
            finished = state is not None and _finished(folder, options, state)
            if finished and not options.rescored(stored.get("options", {})):
                print(f"{folder} is finished: {folder.read_metrics()['steps']} steps, as its options say.")
                return folder.read_metrics()
        return make(folder, state).complete()


class ModelRun:
    """The objects of one run: data, model, state.

    A subclass gives the hooks below, which are called in this order: `load_data`, `make_model`, `make_validation`,
    `write_files`, `dataset` and, at the end, `choose_weights`, `scores`, `write_results`.

    Args:
        options: a `RunOptions`.
        folder: the claimed `RunFolder`.
        state: `(groups, info)` of the checkpoint to go on from, or None.
        callbacks: more Keras callbacks for `model.fit`.

    Attributes:
        checkpoints_kept: how many checkpoints stay on disk.
        counted: what the count of the first metric is called in history.json; `<rate_name>` in metrics.json is its sum
            divided by the seconds of training.
        model, metrics, progress, validation, checkpoints: of the run; metrics are the compiled ones, "loss" first.
    """

    checkpoints_kept = 2
    counted, rate_name = "tokens", "target_tokens_per_second"

    def __init__(self, options, folder, state, callbacks=()):
        self.options = options
        self.folder = folder
        self.user_callbacks = list(callbacks)
        keras.utils.set_random_seed(options.seed)
        fingerprint = self.load_data(state)
        if options.resume:
            _check_same_data(folder, fingerprint)
        keras.utils.set_random_seed(options.seed)  # the model's weights do not depend on what came before
        self.model, self.metrics = self.make_model()
        self.checkpoints = CheckpointFolder(folder.checkpoints_path, keep=self.checkpoints_kept)
        if state is None:
            self.progress, metric_values = Progress(), None
        else:
            groups, info = state
            self.progress = _progress(info)
            assign_variables(self.model.variables, groups["model"], "model")
            assign_variables(self.model.optimizer.variables, groups["optimizer"], "optimizer")
            metric_values = groups["metrics"]
        self.validation = self.make_validation()
        self.budget = Budget(**options.budget())
        self.loop = ResumableTraining(
            self.progress,
            self.checkpoints,
            steps_per_epoch=self.steps_per_epoch(),
            metrics=self.metrics,
            budget=self.budget,
            validate=self.validation,
            checkpoint_every=options.checkpoint_every,
            counted=self.counted,
            restored_metrics=metric_values,
        )
        self._write_beginning(fingerprint, new=state is None)

    # --- hooks ----------------------------------------------------------------------------------------------------

    def load_data(self, state):
        """Read the data, and return a digest of them; `state` is None for a run that begins."""
        raise NotImplementedError

    def make_model(self):
        """`(model, metrics)`, the compiled model and its metrics with the loss first, built and with an optimizer."""
        raise NotImplementedError

    def make_validation(self):
        """Function `(record, last, progress)` as `ResumableTraining` takes it, with `restore_best(best)`."""
        raise NotImplementedError

    def steps_per_epoch(self):
        """Batches of a whole epoch."""
        raise NotImplementedError

    def dataset(self, epoch, step):
        """`tf.data.Dataset` of an epoch's batches from number `step` on, and of the epochs after it."""
        raise NotImplementedError

    def training_callbacks(self):
        """Callbacks of this kind of model, which come after the loop's own."""
        return []

    def described(self):
        """What config.json says of the run beside options, model and versions; "data" gets the fingerprint too."""
        raise NotImplementedError

    def write_files(self):
        """Files beside config.json that must be there before the first step."""

    def choose_weights(self):
        """Give the model the weights that are kept: those of the best validation where there is one."""
        if self.progress.best is not None and self.validation.restore_best(self.progress.best):
            print(f"using the best model, of step {self.progress.best['steps']}")

    def scores(self):
        """dict of the numbers by which the finished model is judged."""
        raise NotImplementedError

    def write_results(self):
        """Files about the finished model, written before model.keras and metrics.json."""

    # --- the run --------------------------------------------------------------------------------------------------

    def complete(self):
        """Train up to the budget, then score and save the model."""
        progress = self.progress
        position = f"continuing after step {progress.steps}; " if progress.steps else ""
        print(
            f"{position}{self.model.count_params():,} parameters, {self.steps_per_epoch()} steps an epoch", flush=True
        )
        self.loop.set_model(self.model)
        try:
            with self.loop.signals():
                if progress.steps == 0:
                    self.loop.save()
                self._fit()
        except KeyboardInterrupt:
            saved = "saved" if self.loop.save_if_counted() else "the steps after the last checkpoint will be done again"
            print(
                f"\ninterrupted at step {progress.steps} ({saved}); continue with: --resume --out {self.folder}",
                flush=True,
            )
            raise
        return self._finish()

    def _fit(self):
        options, progress = self.options, self.progress
        callbacks = []
        if options.tensorboard:
            callbacks.append(
                keras.callbacks.TensorBoard(
                    self.folder.logs_path, write_graph=False, update_freq="epoch", profile_batch=0
                )
            )
        callbacks.append(_HistoryFile(self.folder, progress))
        over, logs = self.loop.finish_interrupted_epoch()
        if logs is not None:
            for callback in callbacks:
                callback.set_model(self.model)
                callback.on_epoch_end(progress.history[-1]["epoch"] - 1, logs)
        if over:
            return
        bar = EpochProgress(progress, self.steps_per_epoch(), self.budget.epochs)
        self.model.fit(
            self.dataset(progress.epoch, progress.step),
            initial_epoch=progress.epoch,
            epochs=self.budget.epochs or 10**9,  # the loop stops when the budget is spent
            callbacks=[self.loop, *self.training_callbacks(), *callbacks, *self.user_callbacks, bar],
            shuffle=False,  # the data set has done it
            # Without a terminal a bar that redraws itself would be thousands of lines.
            verbose=1 if sys.stdout.isatty() else 2,
        )

    def _finish(self):
        """Choose the weights, score them, write model.keras and, last of all, metrics.json."""
        progress = self.progress
        self.folder.write_json(self.folder.history_path, progress.history)
        self.choose_weights()
        metrics = {name: float(value) for name, value in self.scores().items()}
        count = sum(record[self.counted] for record in progress.history)
        metrics |= {
            "train_seconds": progress.train_seconds,
            self.rate_name: count / max(progress.train_seconds, 1e-9),
            "seconds": progress.seconds,
            "steps": progress.steps,
            "epochs": progress.epoch,
            "parameters": self.model.count_params(),
        }
        self.write_results()
        write_atomically(self.folder.model_path, uncompiled_copy(self.model).save)
        self.folder.write_json(self.folder.metrics_path, metrics)
        return metrics

    def _write_beginning(self, fingerprint, new):
        """What must be on disk before the first step; of a run that goes on, new limits only."""
        if not new:
            config = self.folder.read_config()
            if config["options"] != self.options.as_dict():
                self.folder.write_json(self.folder.config_path, {**config, "options": self.options.as_dict()})
            return
        described = self.described()
        self.folder.write_json(
            self.folder.config_path,
            {
                "options": self.options.as_dict(),
                "model": keras.saving.serialize_keras_object(self.model)["config"],
                **described,
                "data": {**described["data"], "fingerprint": fingerprint},
                "versions": versions(),
            },
        )
        self.write_files()


class _HistoryFile(keras.callbacks.Callback):
    """history.json after every epoch."""

    def __init__(self, folder, progress):
        super().__init__()
        self.folder, self.progress = folder, progress

    def on_epoch_end(self, epoch, logs=None):
        self.folder.write_json(self.folder.history_path, self.progress.history)


def uncompiled_copy(model):
    """The same model without loss and optimizer, so that it loads where the training package is not imported."""
    copy = type(model).from_config(model.get_config())
    copy.build_from_config(model.get_build_config())
    for variable, value in zip(copy.variables, model.variables, strict=True):
        variable.assign(value)
    return copy


def given_options(options_class, given):
    """The options of a command: those of the command line, on top of the stored ones where a run is resumed."""
    if not given.get("resume"):
        return options_class(**given)
    stored = RunFolder(given["out"]).read_config()
    return options_class.resumed(stored.get("options", {}), given)


def print_metrics(metrics):
    """The content of metrics.json, a line for each number."""
    for name, value in metrics.items():
        print(f"{name:32} {value:,.4f}" if isinstance(value, float) else f"{name:32} {value:,}")


def _progress(info):
    known = {each.name for each in fields(Progress)}
    return Progress(**{name: value for name, value in info.items() if name in known})


def _restorable_state(folder, checkpoints_kept):
    """The newest readable checkpoint, or None for a run that was killed before its first."""
    checkpoints = CheckpointFolder(folder.checkpoints_path, keep=checkpoints_kept)
    if checkpoints.empty() and folder.history_path.exists():
        raise UsageError(f"{folder} has no checkpoints left to resume from. Restore {checkpoints.path} from a copy.")
    return checkpoints.load_newest()


def _finished(folder, options, state):
    progress = _progress(state[1])
    if not (Budget(**options.budget()).spent(progress) and progress.validated == progress.steps):
        return False
    return (
        folder.metrics_path.exists()
        and folder.model_path.exists()
        and folder.read_metrics().get("steps") == progress.steps
    )


def _check_same_data(folder, fingerprint):
    stored = folder.read_config().get("data", {}).get("fingerprint")
    if stored != fingerprint:
        raise UsageError(
            f"The data are not those that the run in {folder} was started with. Give the same ones in the same "
            "order, or train in another folder."
        )
