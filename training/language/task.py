"""Training a language model on the bytes of files: to a run folder that holds a finished model.

    python -m keras_attention.training.language --data book.txt.gz --out runs/book

and the same from Python: `train(LanguageOptions(out="runs/book", data=["book.txt.gz"]))`.
"""

import math
from dataclasses import dataclass

import tensorflow as tf

from keras_attention.models import DecoderLM
from keras_attention.text import ByteTokenizer
from keras_attention.training.language.byte_windows import ByteWindows, fingerprint, read_bytes, split_tail
from keras_attention.training.optimization.compiling import compile_model
from keras_attention.training.run.fitting import fit_in_folder
from keras_attention.training.run.mechanism_options import decoding_mechanism
from keras_attention.training.run.task import Task, TaskData
from keras_attention.training.run.validation import Validation


def train(options, *, callbacks=()):
    """Train a language model and leave it in a run folder; see `fit_in_folder`.

    The model with the lowest loss on the validation bytes is kept.

    Args:
        options: `LanguageOptions`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict, the content of metrics.json: "validation/bits_per_byte", "validation/loss" (in nats) and
        "validation/accuracy", of bytes predicted from at most `length` preceding ones, and what `fit_in_folder` says of
        the run; "train_rate" counts bytes.

    Raises:
        UsageError, KeyboardInterrupt: see `fit_in_folder`.

    Example:
        >>> train(LanguageOptions(out="runs/book", data=["book.txt"], steps=500))["validation/bits_per_byte"]
    """
    return fit_in_folder(LanguageTask(options), callbacks=callbacks)


@dataclass(frozen=True, kw_only=True)
class LanguageData(TaskData):
    """Bytes of files; `held_out` are the `ByteWindows` of the validation, or None."""

    held_out: object


class LanguageTask(Task):
    """A decoder on the bytes of files."""

    def read(self, folder):
        options = self.options
        documents = [read_bytes(path) for path in options.data]
        beginnings, ends = split_tail(documents, options.validation_share)
        sizes = {"length": options.length, "batch_size": options.batch_size, "whole_batches": options.jit_compile}
        windows = ByteWindows(beginnings, seed=options.seed, **sizes)
        held_out = ByteWindows(ends, shuffle=False, **sizes) if ends else None
        count = {"train": windows.tokens, "validation": held_out.tokens if held_out else 0}
        print(
            f"{len(documents)} file{'s' * (len(documents) > 1)}: {count['train']:,} bytes an epoch, "
            f"{count['validation']:,} held out",
            flush=True,
        )
        return LanguageData(
            batches=windows,
            fingerprint=fingerprint(documents),
            origin=", ".join(options.data),
            sizes=count,
            config={"tokenizer": {"kind": "bytes", "offset": ByteTokenizer.offset}},
            held_out=held_out,
        )

    def build(self, data):
        options = self.options
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
        return model, compile_model(model, options)

    def validation(self, data, model, best_path):
        return Validation(model, best_path, lambda epoch, last: _measured(model, data.held_out))

    def score(self, data, model, folder, kept):
        if kept is None:
            found = _measured(model, data.held_out)
        else:  # known already, and a long file takes time
            found = {name.removeprefix("val_"): x for name, x in kept.items() if name.startswith("val_")}
        return {"validation": found}


def _measured(model, windows):
    """The numbers of a model on `ByteWindows`; none where nothing was held out."""
    if windows is None:
        return {}
    scores = model.evaluate(windows.dataset(), verbose=0, return_dict=True)
    return {"bits_per_byte": scores["loss"] / math.log(2), **scores}
