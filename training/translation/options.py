"""The options of a translation run."""

from dataclasses import dataclass

from keras_attention.errors import UsageError
from keras_attention.training.run.run_options import (
    DEEPEST,
    LONGEST,
    POSITIONS,
    WIDEST,
    RunOptions,
    check_cooldown,
    check_heads,
    memory_for_weights,
    option,
)

BLEU_TOKENIZERS = ("auto", "13a", "zh", "char", "intl", "none")
EMBEDDED = "embedded"


@dataclass(frozen=True)
class TranslationOptions(RunOptions):
    """Options of `train translation`. Every one is a flag of the command under the same name.

    Raises:
        UsageError: a value is out of range, or two options exclude each other; the message names the flag.
    """

    # --- data
    data: str = option(
        EMBEDDED,
        "A .tsv[.gz] file of sentence pairs, '-' for standard input, or 'embedded' (phrases, no file).",
        fixed=False,
    )
    source: int = option(0, "Column of the source in --data, counted from 0.", least=0)
    target: int = option(1, "Column of the target in --data, counted from 0.", least=0)
    source_file: str | None = option(
        None, "Source sentences, one a line, beside --target-file; in place of --data.", fixed=False
    )
    target_file: str | None = option(None, "Target sentences, line by line as in --source-file.", fixed=False)
    locales: str = option("en,de", "Source and target locale of the embedded phrases.")
    phrases: int = option(24_000, "Number of embedded phrase pairs to train on.", least=1, most=10**7)
    validation_share: float = option(0.02, "Share of a file's sentences held out for validation.", least=0, below=0.5)
    test_share: float = option(0.02, "Share of a file's sentences held out for the test.", least=0, below=0.5)
    vocab_size: int = option(8000, "Subwords of the joint tokenizer.", least=5, most=WIDEST)
    tokenizer_type: str = option("unigram", "Kind of SentencePiece model.", choices=("unigram", "bpe"))
    max_length: int = option(
        128, "Longest source or target in tokens; longer pairs are left out.", least=4, most=LONGEST
    )
    # --- model
    mechanism: str = option(
        "auto",
        "How self-attention attends: a name from `keras_attention.mechanisms.names()`, with options as in "
        "local:radius=3 or bigbird:block_size=8,seed=1; one that cannot decode token by token is used in the encoder "
        "only.",
    )
    decoder_mechanism: str | None = option(
        None, "The same for the decoder alone, where it is to differ from --mechanism."
    )
    positions: str = option(
        "sinusoidal",
        "Positions: added to the embeddings, sinusoidal or learned; told to self-attention, rotary, alibi or relative; "
        "none for mechanisms that know the order by themselves.",
        choices=POSITIONS,
    )
    residual_attention_layers: int = option(
        0, "Last blocks of each stack that add the attention scores of the block before to their own.", least=0
    )
    d_model: int = option(256, "Width of the model.", least=1, most=WIDEST)
    heads: int | None = option(None, "Attention heads; by default what the width recommends.", least=1, most=WIDEST)
    layers: int = option(3, "Encoder blocks, and as many decoder blocks.", least=1, most=DEEPEST)
    mlp_dim: int | None = option(
        None, "Width of the feed-forward layers; 4 * d_model by default.", least=1, most=WIDEST
    )
    dropout: float = option(0.1, "Dropout rate.", least=0, below=1)
    share_embeddings: bool = option(True, "One embedding table for source, target and output.")
    remat: bool = option(
        False,
        "Compute every block again for its gradient (gradient checkpointing): less memory, more time, the same model.",
        fixed=False,
    )
    # --- training
    tokens_per_batch: int = option(
        4096, "Tokens in a batch, padding included, on the longer side.", least=1, most=2**26
    )
    learning_rate: float = option(1e-3, "Learning rate at the end of the warm-up.", above=0)
    warmup: int = option(1000, "Steps of warm-up; after it the rate falls with the inverse square root.", least=0)
    cooldown: int = option(0, "Steps at the end of --steps over which the rate falls to 0.", least=0)
    label_smoothing: float = option(
        0.1, "Mass of the target distribution spread over the vocabulary.", least=0, below=1
    )
    average: int = option(0, "Use the mean of the last N checkpoints in place of the best one.", least=0)
    # --- along the way
    bleu_every: int = option(
        1, "Translate validation sentences every N epochs and keep the best BLEU; 0: never.", least=0
    )
    validation_sentences: int = option(200, "How many validation sentences are translated each time.", least=1)
    test_sentences: int = option(1000, "How many test sentences are translated at the end.", fixed=False, least=1)
    bleu_tokenizer: str = option(
        "auto", "sacrebleu's tokenizer; 'auto' looks at the references.", choices=BLEU_TOKENIZERS
    )

    kind = "translation"
    paths = ("data", "source_file", "target_file")

    def __post_init__(self):
        super().__post_init__()
        if (self.source_file is None) != (self.target_file is None):
            raise UsageError("--source-file and --target-file belong together; give both, or --data with one file.")
        if self.source_file is not None and self.data != EMBEDDED:
            raise UsageError("--data and --source-file are two ways to give the sentences; give one of them.")
        self.locale_pair()
        self._refuse_unused()
        check_cooldown(self)
        if self.source == self.target:
            raise UsageError(f"--source and --target are both column {self.source}; give two different columns.")
        if self.heads is not None:
            check_heads(self.d_model, self.heads)

    def _refuse_unused(self):
        if self.source_file is not None:
            self.refuse_given(("source", "target", "locales", "phrases"), "the sentences come from --source-file")
        elif self.data != EMBEDDED:
            self.refuse_given(("locales", "phrases"), "the sentences come from --data")
        else:
            self.refuse_given(
                ("source", "target", "validation_share", "test_share"),
                "the embedded phrases, which have no columns and bring their own split, are the data",
            )
        if self.validation_share == 0:
            unused = ("validation_sentences", "bleu_every") if self.bleu_every else ("validation_sentences",)
            self.refuse_given(unused, "--validation-share 0 leaves nothing to validate on")

    def rescored(self, stored):
        return self.test_sentences != stored.get("test_sentences", self.test_sentences)

    def locale_pair(self):
        """Source and target locale of the embedded phrases."""
        locales = tuple(part.strip() for part in self.locales.split(","))
        if len(locales) != 2 or not all(locales):
            raise UsageError(
                f"--locales must be two locales with a comma between. Got {self.locales!r}; for example en,de."
            )
        return locales

    def least_memory(self):
        return memory_for_weights(2 * self.layers, self.d_model, self.mlp_dim)

    def also_fixed(self):
        names = {"checkpoint_every"} if self.average else set()
        # The cool-down is counted back from the last step.
        return names | ({"steps"} if self.cooldown else set())


TrainOptions = TranslationOptions  # the older name
