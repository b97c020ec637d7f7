"""The options of a translation run: one dataclass that the command line, Python and config.json share."""

from dataclasses import MISSING, asdict, dataclass, field, fields

from keras_attention.errors import UsageError

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
BLEU_TOKENIZERS = ("auto", "13a", "zh", "char", "intl", "none")
EMBEDDED = "embedded"
DEFAULT_EPOCHS = 10


def _option(default, help, *, fixed=True, choices=None, least=None, above=None, below=None):
    """A field with what the command line and the checks need to know.

    `fixed`: the result depends on it, so a run cannot be resumed with another value.
    """
    return field(
        default=default,
        metadata={"help": help, "fixed": fixed, "choices": choices, "least": least, "above": above, "below": below},
    )


@dataclass(frozen=True)
class TrainOptions:
    """Options of `train`. Every one is a flag of the command under the same name (`d_model` is `--d-model`).

    Raises:
        UsageError: a value is out of range, or two options exclude each other; the message names the flag.
    """

    out: str = _option(MISSING, "The run folder to write.", fixed=False)
    resume: bool = _option(
        False, "Continue the run in --out; options that are not given are those of the run.", fixed=False
    )
    # --- data
    data: str = _option(
        EMBEDDED,
        "A .tsv[.gz] file of sentence pairs, '-' for standard input, or 'embedded' (phrases, no file).",
        fixed=False,
    )
    source: int = _option(0, "Column of the source in --data, counted from 0.", least=0)
    target: int = _option(1, "Column of the target in --data, counted from 0.", least=0)
    source_file: str | None = _option(
        None, "Source sentences, one a line, beside --target-file; in place of --data.", fixed=False
    )
    target_file: str | None = _option(None, "Target sentences, line by line as in --source-file.", fixed=False)
    locales: str = _option("en,de", "Source and target locale of the embedded phrases.")
    phrases: int = _option(24_000, "Number of embedded phrase pairs to train on.", least=1)
    validation_share: float = _option(0.02, "Share of a file's sentences held out for validation.", least=0, below=0.5)
    test_share: float = _option(0.02, "Share of a file's sentences held out for the test.", least=0, below=0.5)
    vocab_size: int = _option(8000, "Subwords of the joint tokenizer.", least=5)
    tokenizer_type: str = _option("unigram", "Kind of SentencePiece model.", choices=("unigram", "bpe"))
    max_length: int = _option(128, "Longest source or target in tokens; longer pairs are left out.", least=4)
    # --- model
    mechanism: str = _option(
        "auto",
        "How self-attention attends: a name from `keras_attention.mechanisms.names()`, with options as in "
        "local:radius=3 or bigbird:block_size=8,seed=1; one that cannot decode token by token is used in the encoder "
        "only.",
    )
    decoder_mechanism: str | None = _option(
        None, "The same for the decoder alone, where it is to differ from --mechanism."
    )
    d_model: int = _option(256, "Width of the model.", least=1)
    heads: int | None = _option(None, "Attention heads; by default what the width recommends.", least=1)
    layers: int = _option(3, "Encoder blocks, and as many decoder blocks.", least=1)
    mlp_dim: int | None = _option(None, "Width of the feed-forward layers; 4 * d_model by default.", least=1)
    dropout: float = _option(0.1, "Dropout rate.", least=0, below=1)
    share_embeddings: bool = _option(True, "One embedding table for source, target and output.")
    # --- training
    epochs: int | None = _option(
        None,
        f"Stop after so many passes over the data ({DEFAULT_EPOCHS} unless --steps or --minutes is given).",
        fixed=False,
        least=1,
    )
    steps: int | None = _option(None, "Stop after so many steps.", fixed=False, least=1)
    minutes: float | None = _option(
        None, "Stop after so many minutes; the final scores come on top.", fixed=False, above=0
    )
    tokens_per_batch: int = _option(4096, "Tokens in a batch, padding included, on the longer side.", least=1)
    learning_rate: float = _option(1e-3, "Learning rate at the end of the warm-up.", above=0)
    warmup: int = _option(1000, "Steps of warm-up; after it the rate falls with the inverse square root.", least=0)
    cooldown: int = _option(0, "Steps at the end of --steps over which the rate falls to 0.", least=0)
    label_smoothing: float = _option(
        0.1, "Mass of the target distribution spread over the vocabulary.", least=0, below=1
    )
    average: int = _option(0, "Use the mean of the last N checkpoints in place of the best one.", least=0)
    precision: str = _option("float32", "Floating-point precision.", choices=PRECISIONS)
    jit_compile: bool = _option(False, "Compile the training step with XLA; batches then have a few fixed shapes.")
    seed: int = _option(0, "Seed of everything random.", least=0)
    # --- along the way
    bleu_every: int = _option(
        1, "Translate validation sentences every N epochs and keep the best BLEU; 0: never.", least=0
    )
    validation_sentences: int = _option(200, "How many validation sentences are translated each time.", least=1)
    test_sentences: int = _option(1000, "How many test sentences are translated at the end.", fixed=False, least=1)
    bleu_tokenizer: str = _option(
        "auto", "sacrebleu's tokenizer; 'auto' looks at the references.", choices=BLEU_TOKENIZERS
    )
    checkpoint_every: int = _option(500, "Steps between two checkpoints.", fixed=False, least=1)
    tensorboard: bool = _option(True, "Write TensorBoard's files to OUT/logs.", fixed=False)

    def __post_init__(self):
        if not self.out:
            raise UsageError("--out needs the name of a folder for the run.")
        for option in fields(self):
            _check(option, getattr(self, option.name))
        if (self.source_file is None) != (self.target_file is None):
            raise UsageError("--source-file and --target-file belong together; give both, or --data with one file.")
        if self.source_file is not None and self.data != EMBEDDED:
            raise UsageError("--data and --source-file are two ways to give the sentences; give one of them.")
        self.locale_pair()
        self._refuse_unused()
        if self.cooldown and not (self.steps and self.cooldown <= self.steps):
            raise UsageError(f"--cooldown={self.cooldown} needs --steps of at least as many. Got --steps={self.steps}.")
        if self.source == self.target:
            raise UsageError(f"--source and --target are both column {self.source}; give two different columns.")
        if self.heads is not None and self.d_model % self.heads:
            fitting = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            near = sorted(sorted(fitting, key=lambda n: abs(n - self.heads))[:3])
            raise UsageError(
                f"--d-model must be divisible by --heads. Got {self.d_model} and {self.heads}; "
                f"use for example {' or '.join(map(str, near))} heads."
            )

    def _refuse_unused(self):
        """An option that would have no effect is an error, not a surprise."""
        if self.source_file is not None:
            unused, why = ("source", "target", "locales", "phrases"), "the sentences come from --source-file"
        elif self.data != EMBEDDED:
            unused, why = ("locales", "phrases"), "the sentences come from --data"
        else:
            unused = ("source", "target", "validation_share", "test_share")
            why = "the embedded phrases, which have no columns and bring their own split, are the data"
        given = [flag_name(f.name) for f in fields(self) if f.name in unused and getattr(self, f.name) != f.default]
        if given:
            raise UsageError(f"{' and '.join(given)} would have no effect: {why}. Leave it out.")

    def locale_pair(self):
        """Source and target locale of the embedded phrases."""
        locales = tuple(part.strip() for part in self.locales.split(","))
        if len(locales) != 2 or not all(locales):
            raise UsageError(
                f"--locales must be two locales with a comma between. Got {self.locales!r}; for example en,de."
            )
        return locales

    def budget(self):
        """The limits as keyword arguments of `Budget`."""
        epochs = self.epochs
        if epochs is None and self.steps is None and self.minutes is None:
            epochs = DEFAULT_EPOCHS
        return {"epochs": epochs, "steps": self.steps, "minutes": self.minutes}

    def as_dict(self):
        """The options as config.json holds them."""
        return {name: value for name, value in asdict(self).items() if name not in ("out", "resume")}

    @classmethod
    def resumed(cls, stored, given):
        """The options of a run that is continued.

        Args:
            stored: the options in its config.json.
            given: what the user gave, by name. New limits (epochs, steps, minutes) replace the old ones together.
        """
        known = {option.name for option in fields(cls)}
        options = {name: value for name, value in stored.items() if name in known}
        if {"epochs", "steps", "minutes"} & set(given):
            options.update(epochs=None, steps=None, minutes=None)
        return cls(**{**options, **given, "resume": True})

    def refuse_changes(self, stored):
        """Raise UsageError if an option that decides the result differs from the stored ones."""
        changed = []
        for option in fields(self):
            fixed = option.metadata["fixed"] or (option.name == "checkpoint_every" and self.average > 0)
            # The cool-down is counted back from the last step.
            fixed = fixed or (option.name == "steps" and self.cooldown > 0)
            if fixed and option.name in stored and stored[option.name] != getattr(self, option.name):
                flag = flag_name(option.name)
                changed.append(f"{flag} (was {stored[option.name]}, is {getattr(self, option.name)})")
        if changed:
            raise UsageError(
                f"The run in {self.out} cannot be resumed with other options that change its result: "
                f"{', '.join(changed)}. Leave them out, or train in another folder."
            )


def flag_name(name):
    """`d_model` -> `--d-model`."""
    return "--" + name.replace("_", "-")


def _check(option, value):
    rules, flag = option.metadata, flag_name(option.name)
    if value is None:
        return
    if rules["choices"] and value not in rules["choices"]:
        raise UsageError(f"{flag} must be one of {', '.join(rules['choices'])}. Got {value}.")
    least, above, below = rules["least"], rules["above"], rules["below"]
    if (
        (least is not None and not value >= least)
        or (above is not None and not value > above)
        or (below is not None and not value < below)
    ):
        limits = [f"at least {least}"] if least is not None else [f"above {above}"] if above is not None else []
        limits += [f"below {below}"] if below is not None else []
        raise UsageError(f"{flag} must be {' and '.join(limits)}. Got {value}.")
