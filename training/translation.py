"""Training a translation model: from sentence pairs to a run folder that holds a finished model.

    python -m keras_attention.training.translation --data pairs.tsv --out runs/first

and the same from Python: `train(TrainOptions(out="runs/first", data="pairs.tsv"))`.
"""

import importlib.util
import sys
from dataclasses import fields

import keras
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.arguments import run_alone, typer_command
from keras_attention.training.averaging import average_checkpoints
from keras_attention.training.batches import BatchPlan
from keras_attention.training.callbacks import Budget, Progress, ResumableTraining
from keras_attention.training.checkpoints import CheckpointFolder, DamagedCheckpoint, assign_variables
from keras_attention.training.compiling import compile_model, dtype_policy, versions
from keras_attention.training.corpus import SPLITS, load_corpus, sample
from keras_attention.training.decoding import greedy_translator
from keras_attention.training.options import TrainOptions
from keras_attention.training.progress_bar import EpochProgress
from keras_attention.training.run_folder import RunFolder, write_atomically
from keras_attention.training.scoring import score
from keras_attention.training.stacks import stack_mechanisms
from keras_attention.training.validation import Validation


def train(options, *, callbacks=(), translator=greedy_translator):
    """Train a translation model and leave it in a run folder.

    With equal options and data the weights are the same in every run on one machine, however often a run was
    interrupted (Ctrl-C, kill -9, power cut) and resumed.

    Args:
        options: `TrainOptions`.
        callbacks: more Keras callbacks for `model.fit`.
        translator: function `(model, tokenizer)` that returns a function `list[str] -> list[str]`, for the scores.

    Returns:
        dict, the content of metrics.json: "loss", "accuracy", "BLEU", "chrF", "exact_match" (and "exact_match/<kind>"
        for the embedded phrases) on the test split, the same under "validation/..." on the validation split,
        "train_seconds" (training steps alone), "target_tokens_per_second" (real tokens in that time), "seconds" (with
        validation and checkpoints), "steps", "epochs" (whole ones), "parameters".

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
            state = _restorable_state(folder, options)
            if state is not None and _finished(folder, options, state):
                print(f"{folder} is finished: {folder.read_metrics()['steps']} steps, as its options say.")
                return folder.read_metrics()
        return _Run(options, folder, state, callbacks, translator).complete()


class _Run:
    """The objects of one run: data, tokenizer, model, state."""

    def __init__(self, options, folder, state, callbacks, translator):
        self.options = options
        self.folder = folder
        self.user_callbacks = list(callbacks)
        keras.utils.set_random_seed(options.seed)
        self.corpus = load_corpus(options)
        fingerprint = self.corpus.fingerprint()
        if options.resume:
            _check_same_data(folder, fingerprint)
        self.tokenizer = self._make_tokenizer(state)
        self.plans = self._make_plans()
        keras.utils.set_random_seed(options.seed)  # the model's weights do not depend on what came before
        self.model, self.metrics = self._make_model()
        self.checkpoints = CheckpointFolder(folder.checkpoints_path, keep=options.average)
        if state is None:
            self.progress, metric_values = Progress(), None
        else:
            groups, info = state
            self.progress = _progress(info)
            assign_variables(self.model.variables, groups["model"], "model")
            assign_variables(self.model.optimizer.variables, groups["optimizer"], "optimizer")
            metric_values = groups["metrics"]
        self.translate = translator(self.model, self.tokenizer)
        self.validation = self._make_validation()
        self.budget = Budget(**options.budget())
        self.loop = ResumableTraining(
            self.progress,
            self.checkpoints,
            steps_per_epoch=len(self.plans["train"]),
            metrics=self.metrics,
            budget=self.budget,
            validate=self.validation,
            checkpoint_every=options.checkpoint_every,
            restored_metrics=metric_values,
        )
        self._write_beginning(fingerprint, new=state is None)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _make_tokenizer(self, state):
        path = self.folder.tokenizer_path
        if state is not None:
            return SentencePieceTokenizer.load(self.folder.require(path))
        pairs = self.corpus.splits["train"]
        return SentencePieceTokenizer.train(
            [*pairs.sources, *pairs.targets],
            self.options.vocab_size,
            model_type=self.options.tokenizer_type,
            seed=self.options.seed,
        )

    def _make_plans(self):
        """One `BatchPlan` for each split that has pairs short enough."""
        plans = {}
        for split in SPLITS:
            pairs = self.corpus.splits[split]
            training = split == "train"
            try:
                plan = BatchPlan(
                    self.tokenizer.encode(pairs.sources),
                    self.tokenizer.encode(pairs.targets),
                    tokens_per_batch=self.options.tokens_per_batch,
                    max_length=self.options.max_length,
                    seed=self.options.seed,
                    shuffle=training,
                    static_shapes=self.options.jit_compile,
                )
            except UsageError:
                if training:
                    raise
                print(f"the {split} split has no pair to score")
                continue
            dropped = f", {plan.dropped} longer than --max-length left out" if plan.dropped else ""
            print(f"{split}: {len(pairs.sources)} pairs in {len(plan)} batches{dropped}")
            plans[split] = plan
        return plans

    def _make_model(self):
        """The compiled model and its metrics; what its mechanism cannot do is an error here, not after an epoch."""
        options = self.options
        try:
            encoder_mechanism, decoder_mechanism, note = stack_mechanisms(options)
            model = Transformer(
                self.tokenizer.vocab_size,
                self.tokenizer.vocab_size,
                d_model=options.d_model,
                num_heads=options.heads,
                num_encoder_layers=options.layers,
                num_decoder_layers=options.layers,
                mlp_dim=options.mlp_dim,
                mechanism=encoder_mechanism,
                decoder_mechanism=decoder_mechanism,
                dropout_rate=options.dropout,
                max_length=options.max_length,
                share_embeddings=options.share_embeddings,
                seed=options.seed,
            )
            model.build()
            # Of the longest source, which a mechanism may be unable to take, and the ways of training and of decoding.
            source = tf.ones([1, options.max_length], tf.int32)
            model({"source": source, "target": tf.ones([1, 2], tf.int32)})
            model.init_state(source, max_length=4)
        except (ValueError, TypeError) as error:
            raise UsageError(" ".join(str(error).split())) from error
        if note is not None:
            print(note)
        metrics = compile_model(model, options)
        return model, metrics

    def _make_validation(self):
        plan = self.plans.get("validation")
        pairs = self.corpus.splits["validation"]
        sources, references, _ = sample(pairs, self.options.validation_sentences)
        return Validation(
            self.model,
            None if plan is None else plan.dataset(),
            self.translate,
            sources,
            references,
            every=self.options.bleu_every,
            best_path=self.folder.checkpoints_path / "best.npz",
            tokenize=self.options.bleu_tokenizer,
        )

    def _write_beginning(self, fingerprint, new):
        """What must be on disk before the first step; of a run that goes on, new limits only."""
        if not new and self.folder.read_config()["options"] != self.options.as_dict():
            config = {**self.folder.read_config(), "options": self.options.as_dict()}
            self.folder.write_json(self.folder.config_path, config)
        if new:
            self.folder.write_json(
                self.folder.config_path,
                {
                    "options": self.options.as_dict(),
                    "model": keras.saving.serialize_keras_object(self.model)["config"],
                    "data": {
                        "origin": self.corpus.origin,
                        "fingerprint": fingerprint,
                        **{split: len(self.corpus.splits[split].sources) for split in SPLITS},
                    },
                    "versions": versions(),
                },
            )
            write_atomically(self.folder.tokenizer_path, self.tokenizer.save)

    # --- the run --------------------------------------------------------------------------------------------------

    def complete(self):
        """Train up to the budget, then score and save the model."""
        progress = self.progress
        position = f"continuing after step {progress.steps}; " if progress.steps else ""
        print(
            f"{position}{self.model.count_params():,} parameters, {len(self.plans['train'])} steps an epoch", flush=True
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
        bar = EpochProgress(progress, len(self.plans["train"]), self.budget.epochs)
        self.model.fit(
            self.plans["train"].dataset(progress.epoch, progress.step),
            initial_epoch=progress.epoch,
            epochs=self.budget.epochs or 10**9,  # the loop stops when the budget is spent
            callbacks=[self.loop, *callbacks, *self.user_callbacks, bar],
            shuffle=False,  # the plan has done it
            # Without a terminal a bar that redraws itself would be thousands of lines.
            verbose=1 if sys.stdout.isatty() else 2,
        )

    def _finish(self):
        """Choose the weights, score them, write model.keras and, last of all, metrics.json."""
        progress, options = self.progress, self.options
        self.folder.write_json(self.folder.history_path, progress.history)
        recent = self.checkpoints.regular()[-options.average :] if options.average else []
        if recent:
            try:
                average = average_checkpoints(recent)
            except DamagedCheckpoint as error:
                raise UsageError(
                    f"The mean of the last {len(recent)} checkpoints cannot be taken: {error} Restore the file from a "
                    "copy and resume, or train again."
                ) from error
            assign_variables(self.model.variables, average, "average")
            print(f"using the mean of the last {len(recent)} checkpoints")
        elif progress.best is not None and self.validation.restore_best(progress.best):
            print(f"using the best model, of step {progress.best['steps']}")
        metrics = {}
        for split, prefix in (("validation", "validation/"), ("test", "")):
            for name, value in self._scores(split).items():
                metrics[prefix + name] = float(value)
        tokens = sum(record["tokens"] for record in progress.history)
        metrics |= {
            "train_seconds": progress.train_seconds,
            "target_tokens_per_second": tokens / max(progress.train_seconds, 1e-9),
            "seconds": progress.seconds,
            "steps": progress.steps,
            "epochs": progress.epoch,
            "parameters": self.model.count_params(),
        }
        write_atomically(self.folder.model_path, _uncompiled_copy(self.model).save)
        self.folder.write_json(self.folder.metrics_path, metrics)
        return metrics

    def _scores(self, split):
        pairs = self.corpus.splits[split]
        if split not in self.plans:
            return {}
        scores = self.model.evaluate(self.plans[split].dataset(), verbose=0, return_dict=True)
        count = self.options.validation_sentences if split == "validation" else self.options.test_sentences
        sources, references, kinds = sample(pairs, count)
        return scores | score(self.translate(sources), references, kinds, self.options.bleu_tokenizer)


class _HistoryFile(keras.callbacks.Callback):
    """history.json after every epoch."""

    def __init__(self, folder, progress):
        super().__init__()
        self.folder, self.progress = folder, progress

    def on_epoch_end(self, epoch, logs=None):
        self.folder.write_json(self.folder.history_path, self.progress.history)


def _uncompiled_copy(model):
    """The same model without loss and optimizer, so that it loads where the training package is not imported."""
    copy = type(model).from_config(model.get_config())
    copy.build()
    for variable, value in zip(copy.variables, model.variables):
        variable.assign(value)
    return copy


def _progress(info):
    known = {field.name for field in fields(Progress)}
    return Progress(**{name: value for name, value in info.items() if name in known})


def _restorable_state(folder, options):
    """The newest readable checkpoint, or None for a run that was killed before its first."""
    checkpoints = CheckpointFolder(folder.checkpoints_path, keep=options.average)
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
            f"The data are not those that the run in {folder} was started with. Give the same sentences in the same "
            "order, or train in another folder."
        )


def _run_command(given):
    if given.get("resume"):
        stored = RunFolder(given["out"]).read_config()
        options = TrainOptions.resumed(stored.get("options", {}), given)
    else:
        options = TrainOptions(**given)
    metrics = train(options)
    for name, value in metrics.items():
        print(f"{name:32} {value:,.4f}" if isinstance(value, float) else f"{name:32} {value:,}")


command = typer_command(
    TrainOptions,
    _run_command,
    "Train a translation model with model.fit and write a run folder: model, tokenizer, config, history, metrics.",
)


def main(argv=None):
    """`python -m keras_attention.training.translation`; `argv` is that of the process by default."""
    run_alone(command, argv, "keras_attention.training.translation")


if __name__ == "__main__":
    main()
