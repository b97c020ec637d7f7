"""The options of a run that trains a language model on bytes."""

from dataclasses import dataclass

from keras_attention.errors import UsageError
from keras_attention.training.run.run_options import (
    DEEPEST,
    POSITIONS,
    WIDEST,
    RunOptions,
    check_cooldown,
    check_heads,
    epochs_option,
    memory_for_weights,
    option,
)

DEFAULT_EPOCHS = 10


@dataclass(frozen=True)
class LanguageOptions(RunOptions):
    """Options of `train lm`. Every one is a flag of the command under the same name.

    Raises:
        UsageError: a value is out of range, or no data; the message names the flag.
    """

    epochs: int | None = epochs_option(DEFAULT_EPOCHS)
    # --- data
    data: list[str] | None = option(  # noqa: RUF009 a field, as all of them
        None, "A file to learn, text or any other bytes, .gz or not; give it again for several files.", fixed=False
    )
    validation_share: float = option(
        0.05, "Share of each file, from its end, held out for validation.", least=0, below=0.5
    )
    length: int = option(2048, "Bytes that the model reads in one piece.", least=2, most=2**26)
    batch_size: int = option(8, "Pieces in a batch.", least=1, most=2**20)
    # --- model
    mechanism: str = option(
        "auto",
        "How attention attends: a name of `keras_attention.mechanisms.names()` that can be causal, with options as in "
        "local:radius=64.",
    )
    d_model: int = option(256, "Width of the model.", least=1, most=WIDEST)
    heads: int | None = option(None, "Attention heads; by default what the width recommends.", least=1, most=WIDEST)
    kv_heads: int | None = option(
        None, "Heads of keys and values; as many as --heads by default.", least=1, most=WIDEST
    )
    layers: int = option(4, "Blocks.", least=1, most=DEEPEST)
    mlp_dim: int | None = option(
        None, "Width of the feed-forward layers; 4 * d_model by default.", least=1, most=WIDEST
    )
    gated_mlp: bool = option(False, "Gated feed-forward layers.")
    positions: str = option(
        "sinusoidal",
        "Positions; none for mechanisms that know the order by themselves.",
        choices=POSITIONS,
    )
    residual_attention_layers: int = option(
        0, "Last blocks that add the attention scores of the block before to their own.", least=0
    )
    dropout: float = option(0.1, "Dropout rate.", least=0, below=1)
    remat: bool = option(
        False,
        "Compute every block again for its gradient (gradient checkpointing): less memory, more time, the same model.",
        fixed=False,
    )
    # --- training
    learning_rate: float = option(1e-3, "Learning rate at the end of the warm-up.", above=0)
    warmup: int = option(100, "Steps of warm-up; after it the rate falls with the inverse square root.", least=0)
    cooldown: int = option(0, "Steps at the end of --steps over which the rate falls to 0.", least=0)

    kind = "language"
    default_epochs = DEFAULT_EPOCHS
    label_smoothing = 0.0  # bits per byte are those of the plain loss

    def __post_init__(self):
        super().__post_init__()
        if not self.data:
            raise UsageError("--data needs at least one file to learn.")
        if self.heads is not None:
            check_heads(self.d_model, self.heads)
        check_cooldown(self)

    def least_memory(self):
        return memory_for_weights(self.layers, self.d_model, self.mlp_dim)

    def also_fixed(self):
        # The cool-down is counted back from the last step.
        return {"steps"} if self.cooldown else set()
