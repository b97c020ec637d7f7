"""A task is fitted in a run folder: what training of every kind of model shares, from beginning to end."""

import errno
import importlib.util
import os
import resource
import sys
from contextlib import contextmanager

import keras
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.training.optimization.compiling import dtype_policy, versions
from keras_attention.training.optimization.cosine import CosineOverBudget
from keras_attention.training.run.callbacks import Budget, Progress, ResumableTraining
from keras_attention.training.run.progress_bar import EpochProgress
from keras_attention.training.run.run_folder import RunFolder, write_atomically
from keras_attention.training.run.training_state import CheckpointFolder, assign_variables


def fit_in_folder(task, *, callbacks=()):
    """Fit a task in the folder `task.options.out`, or say that the run there is finished.

    With equal options and data the weights are the same in every run on one machine, however often a run was
    interrupted (Ctrl-C, kill -9, power cut) and resumed; a limit of minutes alone makes the number of steps vary.

    Args:
        task: a `Task`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict of numbers, the content of metrics.json: `<split>/<name>` for each score of the task, such as
        "test/accuracy" or "validation/loss", and of the run "train_seconds" (training steps alone), "train_rate" (what
        "counted" in config.json names, such as tokens or images, a second of these), "seconds" (with validation and
        checkpoints), "steps", "epochs" (whole ones), "parameters", "peak_memory_mb" (the most resident memory of this
        process, in 10^6 bytes).

    Raises:
        UsageError: bad options or data, a folder that is taken, a run that cannot be resumed, a full disk.
        MemoryError: the model, the data or a batch do not fit.
        KeyboardInterrupt: Ctrl-C; the state is saved.
    """
    options, folder = task.options, RunFolder(task.options.out)
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError("TensorBoard's files need its package: pip install tensorboard, or give --no-tensorboard.")
    with _limits_in_one_line(folder), folder.claimed(options.resume), dtype_policy(options.precision):
        _refuse_beyond_memory(options.least_memory())
        # What is there of a run that goes on.
        checkpoints = CheckpointFolder(folder.checkpoints_path, keep=task.checkpoints_kept)
        stored, state = {}, None
        if options.resume:
            stored = folder.config_to_resume()
            options.refuse_changes(stored.get("options", {}))
            state = _newest_state(folder, checkpoints)
        progress = Progress() if state is None else Progress.restored(state[1])
        budget = Budget(**options.budget())
        if _finished(folder, budget, progress) and not options.rescored(stored.get("options", {})):
            print(f"{folder} is finished: {progress.steps} steps, as its options say.")
            return folder.read_metrics()

        # Data and model.
        keras.utils.set_random_seed(options.seed)
        data = task.read(folder if state is not None else None)
        if options.resume:
            _check_same_data(folder, stored, data.fingerprint)
        keras.utils.set_random_seed(options.seed)  # the model's weights do not depend on what came before
        model, metrics = _built(task, data)

        # The state of a run that goes on, or the beginning of a new one.
        metric_values = None
        if state is not None:
            assign_variables(model.variables, state[0]["model"], "model")
            assign_variables(model.optimizer.variables, state[0]["optimizer"], "optimizer")
            metric_values = state[0]["metrics"]
        validation = task.validation(data, model, folder.checkpoints_path / "best.npz")
        loop = ResumableTraining(
            progress,
            checkpoints,
            steps_per_epoch=len(data.batches),
            metrics=metrics,
            budget=budget,
            validate=validation,
            checkpoint_every=options.checkpoint_every,
            counted=task.counted,
            restored_metrics=metric_values,
        )
        if state is None:
            _write_beginning(folder, task, data, model)
        elif stored["options"] != options.as_dict():  # new limits
            folder.write_json(folder.config_path, {**stored, "options": options.as_dict()})

        # Steps.
        _train(folder, options, data, model, loop, callbacks)

        # Scores and the finished model; metrics.json comes last, and says that all is there.
        folder.write_json(folder.history_path, progress.history)
        kept = task.choose_weights(model, validation, progress, checkpoints)
        scores = task.score(data, model, folder, kept)
        metrics = {f"{split}/{name}": float(x) for split, found in scores.items() for name, x in found.items()}
        count = sum(record[task.counted] for record in progress.history)
        metrics |= {
            "train_seconds": progress.train_seconds,
            "train_rate": count / max(progress.train_seconds, 1e-9),
            "seconds": progress.seconds,
            "steps": progress.steps,
            "epochs": progress.epoch,
            "parameters": model.count_params(),
            "peak_memory_mb": peak_memory() / 1e6,
        }
        write_atomically(folder.model_path, uncompiled_copy(model).save)
        folder.write_json(folder.metrics_path, metrics)
        return metrics


@contextmanager
def _limits_in_one_line(folder):
    """Within the block a disk that is full or cannot be written is a `UsageError`, a lack of memory a `MemoryError`.

    What was saved before is whole: every file is written beside its place and renamed.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and error.errno not in _FULL:
            raise  # of a file of the user's, which the command names
        raise _unwritten(folder, error.strerror or error) from error
    except tf.errors.ResourceExhaustedError as error:
        if _NO_SPACE in str(error):
            raise _unwritten(folder, _NO_SPACE) from error
        raise MemoryError(" ".join(str(error).split())[:200]) from error


_FULL, _NO_SPACE = (errno.ENOSPC, errno.EDQUOT), os.strerror(errno.ENOSPC)


def _unwritten(folder, reason):
    further = "continue with --resume" if folder.config_path.exists() else "start again"
    return UsageError(f"{folder} cannot be written ({reason}). Free space, then {further}.")


def _refuse_beyond_memory(needed):
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UsageError(
            f"Training a model of these sizes takes at least {needed / 1e9:,.0f} GB of memory for its weights, and "
            f"this machine has {there / 1e9:,.0f} GB. Give a smaller --d-model or --mlp-dim, or fewer --layers."
        )


def _newest_state(folder, checkpoints):
    """The newest readable checkpoint, or None for a run that was killed before its first."""
    if checkpoints.empty() and folder.history_path.exists():
        raise UsageError(f"{folder} has no checkpoints left to resume from. Restore {checkpoints.path} from a copy.")
    return checkpoints.load_newest()


def _finished(folder, budget, progress):
    return (
        budget.spent(progress)
        and progress.validated == progress.steps
        and folder.metrics_path.exists()
        and folder.model_path.exists()
        and folder.read_metrics().get("steps") == progress.steps
    )


def _check_same_data(folder, stored, fingerprint):
    data = stored.get("data")
    if not isinstance(data, dict) or data.get("fingerprint") != fingerprint:
        raise UsageError(
            f"The data are not those that the run in {folder} was started with. Give the same ones in the same "
            "order, or train in another folder."
        )


def _built(task, data):
    """The task's model and metrics; sizes that do not fit are one line."""
    try:
        return task.build(data)
    except (ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from error


def _write_beginning(folder, task, data, model):
    """What must be on disk before the first step."""
    folder.write_json(
        folder.config_path,
        {
            "kind": task.options.kind,
            "options": task.options.as_dict(),
            "model": keras.saving.serialize_keras_object(model)["config"],
            "data": {"origin": data.origin, **data.sizes, "fingerprint": data.fingerprint},
            **data.config,
            "counted": task.counted,
            "versions": versions(),
        },
    )
    if data.tokenizer is not None:
        write_atomically(folder.tokenizer_path, data.tokenizer.save)


def _train(folder, options, data, model, loop, callbacks):
    """Train up to the budget."""
    progress = loop.progress
    position = f"continuing after step {progress.steps}; " if progress.steps else ""
    print(f"{position}{model.count_params():,} parameters, {len(data.batches)} steps an epoch", flush=True)
    loop.set_model(model)
    try:
        with loop.signals():
            if progress.steps == 0:
                loop.save()
            _fit(folder, options, data, model, loop, callbacks)
    except KeyboardInterrupt:
        saved = "saved" if loop.save_if_counted() else "the steps after the last checkpoint will be done again"
        print(f"\ninterrupted at step {progress.steps} ({saved}); continue with: --resume --out {folder}", flush=True)
        raise


def _fit(folder, options, data, model, loop, callbacks):
    progress, budget, records = loop.progress, loop.budget, []
    if options.tensorboard:
        records.append(
            keras.callbacks.TensorBoard(folder.logs_path, write_graph=False, update_freq="epoch", profile_batch=0)
        )
    records.append(_HistoryFile(folder, progress))
    over, logs = loop.finish_interrupted_epoch()
    if logs is not None:
        for record in records:
            record.set_model(model)
            record.on_epoch_end(progress.history[-1]["epoch"] - 1, logs)
    if over:
        return
    schedules = []
    if data.peak_learning_rate is not None:
        schedules = [CosineOverBudget(data.peak_learning_rate, options.warmup, budget, progress, len(data.batches))]
    model.fit(
        data.batches.dataset(progress.epoch, progress.step),
        initial_epoch=progress.epoch,
        epochs=budget.epochs or 10**9,  # the loop stops when the budget is spent
        callbacks=[
            loop,
            *schedules,
            *records,
            *callbacks,
            EpochProgress(progress, len(data.batches), budget.epochs),
        ],
        shuffle=False,  # the data set has done it
        # Without a terminal a bar that redraws itself would be thousands of lines.
        verbose=1 if sys.stdout.isatty() else 2,
    )


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


def peak_memory():
    """The most memory that this process has had resident, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
