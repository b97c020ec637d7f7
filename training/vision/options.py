"""The options of a run that trains a classifier of images."""

import math
from dataclasses import dataclass

from keras_attention.training.run.run_options import (
    DEEPEST,
    LARGEST,
    WIDEST,
    RunOptions,
    check_heads,
    epochs_option,
    memory_for_weights,
    option,
)
from keras_attention.training.vision import augmentation_names
from keras_attention.training.vision.image_sources import DIGITS

MODELS = ("vit", "hybrid", "swin", "cnn")
POOLINGS = ("token", "mean")
DIGITS_EPOCHS, OTHER_EPOCHS = 90, 20


@dataclass(frozen=True)
class VisionOptions(RunOptions):
    """Options of `train image-classifier`. Every one is a flag of the command under the same name.

    What is None is chosen from the size of the images, see `chosen`.

    Raises:
        UsageError: a value is out of range, or has no effect; the message names the flag.
    """

    epochs: int | None = epochs_option(f"{DIGITS_EPOCHS} for the digits, {OTHER_EPOCHS} for other data,")
    # --- data
    data: str = option(
        DIGITS,
        "'digits' (scikit-learn's, no download), a folder of IDX files as MNIST has them, a folder with a folder of "
        "image files for each class, or an .npz file with images and labels.",
        fixed=False,
    )
    image_size: int | None = option(
        None,
        "Height and width to bring all images to; the data's own by default, 64 for a folder of classes.",
        least=1,
        most=LARGEST,
    )
    validation_share: float = option(0.1, "Share of each class held out for validation.", least=0, below=0.5)
    test_share: float = option(
        0.2, "Share of each class held out for the test; IDX files bring their own.", least=0, below=0.5
    )
    augment: str | None = option(
        None,
        f"Changes to training images, with commas between: {', '.join(augmentation_names.NAMES)}; or none. By default "
        "shift,rotate for digits, crop for IDX and npz, crop,flip for a folder.",
    )
    # --- model
    model: str = option("vit", "Kind of model; cnn is a plain one to compare with.", choices=MODELS)
    mechanism: str | None = option(
        None,
        "How attention attends: a name from `keras_attention.mechanisms.names()`, with options as in "
        "nystrom:num_landmarks=8; auto by default.",
    )
    patch_size: int | None = option(
        None,
        "Side of a patch in pixels: 2 for images up to 16 pixels, about a seventh up to 64, 16 above; swin: half.",
        least=1,
        most=LARGEST,
    )
    d_model: int | None = option(
        None,
        "Width of the model or of its last stage: 64 for images up to 16 pixels, 128 up to 64, 192 above.",
        least=1,
        most=WIDEST,
    )
    heads: int | None = option(None, "Attention heads; by default one for 32 of the width.", least=1, most=WIDEST)
    layers: int | None = option(
        None, "Blocks: 4 for images up to 16 pixels, 6 up to 64, 12 above.", least=1, most=DEEPEST
    )
    mlp_dim: int | None = option(
        None, "Width of the feed-forward layers; 2 * d_model by default.", least=1, most=WIDEST
    )
    pooling: str | None = option(None, "What the class is read from: a class token or the mean.", choices=POOLINGS)
    dropout: float = option(0.0, "Dropout rate.", least=0, below=1)
    drop_path: float = option(0.0, "Stochastic depth: the share of images that skip the last block.", least=0, below=1)
    # --- training
    validate_every: int | None = option(
        None,
        "Validate after every N epochs; by default after each, and where these are short about every 100 steps.",
        least=1,
    )
    batch_size: int = option(64, "Images in a batch.", least=1, most=2**20)
    learning_rate: float | None = option(
        None,
        "Largest learning rate, which falls along a cosine to 0: 2e-3 for images up to 16 pixels, 1e-3 above.",
        above=0,
    )
    warmup: int = option(100, "Steps over which the learning rate rises.", least=0)
    weight_decay: float = option(
        0.05, "Decay of matrices; biases, norms, positions and class tokens have none.", least=0
    )
    label_smoothing: float = option(0.1, "Mass of the target distribution spread over the classes.", least=0, below=1)
    ema: float = option(0.99, "Momentum of the moving average of the weights that is kept; 0: none.", least=0, below=1)

    kind = "image-classifier"

    def __post_init__(self):
        super().__post_init__()
        if self.augment is not None:
            augmentation_names.parse(self.augment)
        if self.d_model is not None and self.heads is not None:
            check_heads(self.d_model, self.heads)
        if self.validation_share == 0:
            self.refuse_given(("validate_every",), "--validation-share 0 leaves nothing to validate on")
        if self.model == "cnn":
            unused = ("mechanism", "patch_size", "heads", "mlp_dim", "pooling", "drop_path")
            self.refuse_given(unused, "a plain CNN has no such part")
        if self.model == "swin":
            self.refuse_given(("pooling",), "a Swin Transformer reads the class from the mean")
        if self.data == DIGITS:
            self.refuse_given(("test_share",), "the digits have a fixed test split of a fifth")

    @property
    def default_epochs(self):
        return DIGITS_EPOCHS if self.data == DIGITS else OTHER_EPOCHS

    def least_memory(self):
        # The blocks of a pyramid, and convolutions, may be narrower.
        blocks = (self.layers or 1) if self.model in ("vit", "hybrid") else 0
        return memory_for_weights(blocks, self.d_model or 1, self.mlp_dim or 1)

    def also_fixed(self):
        # The learning rate is counted back from the end.
        return {"epochs", "steps", "minutes"}

    def chosen(self, *, size, folder):
        """What the images decide where it is not given, and the other options of a model's shape, by name.

        Args:
            size: the longer side of the images in pixels.
            folder: whether they are the photographs of a folder, and not of IDX or npz files.
        """
        step = 0 if size <= 16 else 1 if size <= 64 else 2
        d_model = self.d_model or (64, 128, 192)[step]
        patch_size = (2, 2 ** round(math.log2(size / 7)), 16)[step]
        defaults = {
            "augment": "shift,rotate" if self.data == DIGITS else "crop,flip" if folder else "crop",
            "mechanism": "auto",
            "patch_size": patch_size // 2 if self.model == "swin" else patch_size,
            "d_model": d_model,
            "heads": next(n for n in range(max(1, d_model // 32), 0, -1) if d_model % n == 0),
            "layers": (4, 6, 12)[step],
            "mlp_dim": 2 * d_model,
            "pooling": "mean",
            "learning_rate": (2e-3, 1e-3, 1e-3)[step],
        }
        values = {name: value if (own := getattr(self, name)) is None else own for name, value in defaults.items()}
        check_heads(values["d_model"], values["heads"])
        return {**values, "drop_path": self.drop_path}
