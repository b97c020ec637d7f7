"""The options of a run that trains CLIP on captioned images."""

from dataclasses import dataclass

from keras_attention.errors import UsageError
from keras_attention.training.run.run_options import (
    DEEPEST,
    LARGEST,
    LONGEST,
    WIDEST,
    RunOptions,
    check_heads,
    epochs_option,
    memory_for_weights,
    option,
)
from keras_attention.training.vision import augmentation_names

DEFAULT_EPOCHS = 60
MODELS = ("hybrid", "vit", "swin")
_MIXERS = ("mixup", "cutmix")


@dataclass(frozen=True)
class ClipOptions(RunOptions):
    """Options of `train clip`. Every one is a flag of the command under the same name.

    Raises:
        UsageError: a value is out of range, or has no effect; the message names the flag.
    """

    epochs: int | None = epochs_option(DEFAULT_EPOCHS)
    # --- data
    data: str | None = option(None, "An .npz file with images, or a folder of image files.", fixed=False)
    captions: str | None = option(
        None,
        "A .json file, a list of objects with caption (or annotation), tags and group in the order of the images; for "
        "a folder one with file as well, or a .tsv file of FILE<TAB>CAPTION.",
        fixed=False,
    )
    image_size: int | None = option(
        None,
        "Height and width to bring all images to; an .npz file's own by default, 64 for a folder.",
        least=1,
        most=LARGEST,
    )
    gallery: int = option(250, "Pairs held out to be found at the end; training sees none of their captions.", least=2)
    validation_pairs: int = option(150, "Pairs held out to choose the best weights by; 0: the last ones.", least=0)
    augment: str = option(
        "shift,zoom",
        "Changes to training images, with commas between: shift, rotate, zoom, crop, flip, randaugment; or none.",
    )
    vocab_size: int = option(2000, "Subwords of the tokenizer.", least=5, most=WIDEST)
    max_length: int = option(32, "Longest text in tokens; longer ones lose their end.", least=4, most=LONGEST)
    # --- model
    model: str = option(
        "hybrid", "The image tower: convolutions before attention, a plain ViT, or a Swin.", choices=MODELS
    )
    patch_size: int = option(8, "Side of an image's patch in pixels.", least=1, most=LARGEST)
    mechanism: str = option(
        "auto",
        "How the image tower attends: a name from `keras_attention.mechanisms.names()`, with options such as "
        "'local:radius=8'.",
    )
    d_model: int = option(128, "Width of both towers.", least=1, most=WIDEST)
    heads: int = option(4, "Attention heads of both towers.", least=1, most=WIDEST)
    layers: int = option(3, "Blocks of attention in the image tower.", least=1, most=DEEPEST)
    text_layers: int = option(2, "Blocks of the text tower.", least=1, most=DEEPEST)
    projection_dim: int = option(128, "Size of the space in which images and texts are compared.", least=1, most=WIDEST)
    dropout: float = option(0.1, "Dropout rate of both towers.", least=0, below=1)
    # --- training
    batch_size: int = option(128, "Pairs in a batch, each compared with all others of it.", least=2, most=2**20)
    learning_rate: float = option(1e-3, "Largest learning rate; it falls along a cosine to 0.", above=0)
    warmup: int = option(50, "Steps over which the learning rate rises.", least=0)
    weight_decay: float = option(
        0.1, "Decay of matrices; biases, norms, positions and the temperature have none.", least=0
    )
    ema: float = option(0.99, "Momentum of the moving average of the weights that is kept; 0: none.", least=0, below=1)

    kind = "clip"
    paths = ("data", "captions")
    default_epochs = DEFAULT_EPOCHS

    def __post_init__(self):
        super().__post_init__()
        for name in ("data", "captions"):
            if getattr(self, name) is None:
                raise UsageError(
                    f"--{name} is missing. Give the images by --data and what is said of them by --captions."
                )
        mixing = [name for name in augmentation_names.parse(self.augment) if name in _MIXERS]
        if mixing:
            raise UsageError(f"--augment {mixing[0]} mixes classes, which captions do not have. Leave it out.")
        if self.validation_pairs == 1:
            raise UsageError("--validation-pairs must be 0 or at least 2: one image always finds the only text. Got 1.")
        check_heads(self.d_model, self.heads)

    def least_memory(self):
        # The blocks of a pyramid may be narrower.
        blocks = self.text_layers + (self.layers if self.model == "vit" else 0)
        return memory_for_weights(blocks, self.d_model)

    def also_fixed(self):
        # The learning rate is counted back from the end.
        return {"epochs", "steps", "minutes"}
