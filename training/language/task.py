"""Training a language model on the bytes of files: to a run folder that holds a finished model.

    python -m keras_attention.training.language --data book.txt.gz --out runs/book

and the same from Python: `train(LanguageOptions(out="runs/book", data=["book.txt.gz"]))`.
"""

import math
import resource
import sys

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.models import DecoderLM
from keras_attention.text import ByteTokenizer
from keras_attention.training.language.byte_windows import ByteWindows, fingerprint, read_bytes, split_tail
from keras_attention.training.language.options import LanguageOptions
from keras_attention.training.optimization.compiling import compile_model
from keras_attention.training.run.best_weights import BestWeights
from keras_attention.training.run.command_arguments import run_alone, typer_command
from keras_attention.training.run.mechanism_options import decoding_mechanism
from keras_attention.training.run.model_run import ModelRun, given_options, print_metrics, run_in_folder


def train(options, *, callbacks=()):
    """Train a language model and leave it in a run folder.

    The model with the lowest loss on the validation bytes is kept. With equal options and data the weights are the same
    in every run on one machine, however often a run was interrupted and resumed.

    Args:
        options: `LanguageOptions`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict, the content of metrics.json: "bits_per_byte", "loss" (in nats) and "accuracy" on the validation bytes,
        each told from at most `length` bytes before it; "train_seconds" (training steps alone), "tokens_per_second" (in
        that time), "peak_memory_mb" (the most resident memory of this process, in 10^6 bytes), "seconds" (with
        validation and checkpoints), "steps", "epochs" (whole ones), "parameters".

    Raises:
        UsageError: bad options or data, a folder that is taken, a run that cannot be resumed.
        KeyboardInterrupt: Ctrl-C; the state is saved.

    Example:
        >>> train(LanguageOptions(out="runs/book", data=["book.txt"], steps=500))["bits_per_byte"]
    """
    return run_in_folder(options, lambda folder, state: LanguageRun(options, folder, state, callbacks))


class LanguageRun(ModelRun):
    """A run that trains a language model on bytes."""

    counted, rate_name = "tokens", "tokens_per_second"

    def load_data(self, state):
        options = self.options
        documents = [read_bytes(path) for path in options.data]
        beginnings, ends = split_tail(documents, options.validation_share)
        sizes = {"length": options.length, "batch_size": options.batch_size, "whole_batches": options.jit_compile}
        self.windows = ByteWindows(beginnings, seed=options.seed, **sizes)
        self.held_out = ByteWindows(ends, shuffle=False, **sizes) if ends else None
        self.bytes = {"train": self.windows.tokens, "validation": self.held_out.tokens if ends else 0}
        print(
            f"{len(documents)} file{'s' * (len(documents) > 1)}: {self.bytes['train']:,} bytes an epoch, "
            f"{self.bytes['validation']:,} held out",
            flush=True,
        )
        return fingerprint(documents)

    def make_model(self):
        """The compiled model and its metrics; what its mechanism cannot do is an error here, not after an epoch."""
        options = self.options
        try:
            model = DecoderLM(
                ByteTokenizer.vocab_size,
                d_model=options.d_model,
                num_heads=options.heads,
                num_layers=options.layers,
                mlp_dim=options.mlp_dim,
                mechanism=decoding_mechanism("--mechanism", options.mechanism),
                num_kv_heads=options.kv_heads,
                dropout_rate=options.dropout,
                gated_mlp=options.gated_mlp,
                positions=options.positions,
                residual_attention_layers=options.residual_attention_layers,
                max_length=options.length,
                remat=options.remat,
                seed=options.seed,
            )
            model.build()
            model(tf.ones([1, 2], tf.int32))
        except (ValueError, TypeError) as error:
            raise UsageError(" ".join(str(error).split())) from error
        return model, compile_model(model, options)

    def make_validation(self):
        batches = None if self.held_out is None else self.held_out.dataset()
        return _Validation(self.model, batches, self.folder.checkpoints_path / "best.npz")

    def steps_per_epoch(self):
        return len(self.windows)

    def dataset(self, epoch, step):
        return self.windows.dataset(epoch, step)

    def described(self):
        tokenizer = {"kind": "bytes", "offset": ByteTokenizer.offset}
        return {"data": {"origin": ", ".join(self.options.data), **self.bytes}, "tokenizer": tokenizer}

    def scores(self):
        return {**self.validation.scores(), "peak_memory_mb": peak_memory() / 1e6}


class _Validation:
    """Loss, accuracy and bits per byte of the bytes held out, and the best model on disk."""

    def __init__(self, model, batches, best_path):
        self.model, self.batches = model, batches
        self.best = BestWeights(model, best_path)
        self._restored = None

    def __call__(self, record, last, progress):
        record.update({f"val_{name}": value for name, value in self.evaluate().items()})
        if self.batches is not None:
            self.best.offer(record, progress, _rank)

    def evaluate(self):
        """dict of the numbers; empty where nothing was held out."""
        if self.batches is None:
            return {}
        scores = self.model.evaluate(self.batches, verbose=0, return_dict=True)
        return {"bits_per_byte": scores["loss"] / math.log(2), **scores}

    def restore_best(self, best):
        """Give the model the variables of the best validation; False, with a printed line, where they are lost."""
        restored = self.best.restore(best)
        self._restored = best if restored else None
        return restored

    def scores(self):
        """The numbers of the model as it is: those of the best validation, if its weights were restored, are known."""
        if self._restored is None:
            return self.evaluate()
        return {name.removeprefix("val_"): x for name, x in self._restored.items() if name.startswith("val_")}


def _rank(record):
    loss = record["val_loss"]
    return None if loss != loss else -loss


def peak_memory():
    """The most memory that this process has had resident, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _run_command(given):
    print_metrics(train(given_options(LanguageOptions, given)))


command = typer_command(
    LanguageOptions,
    _run_command,
    "Train a language model on the bytes of files with model.fit and write a run folder: model, config, history, "
    "metrics.",
)


def main(argv=None):
    """`python -m keras_attention.training.language`; `argv` is that of the process by default."""
    run_alone(command, argv, "keras_attention.training.language.task")
