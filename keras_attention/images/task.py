"""What a classifier of images takes, and what its answers are called."""

from dataclasses import asdict, dataclass

import numpy as np

from keras_attention.errors import UsageError, reason_of
from keras_attention.images.files import MAX_PIXELS, resized
from keras_attention.scalars import is_whole


@dataclass(frozen=True, kw_only=True)
class ImageInput:
    """The edge between images and the numbers that a model takes.

    A pixel p of channel c becomes `(p / 255 - mean[c]) / std[c]`.

    Args:
        height, width: size of the images that the model takes.
        channels: 1 for grey, 3 for RGB.
        mean, std: one number for each channel, of pixels from 0 to 1.

    Raises:
        UsageError: numbers that do not fit together.
    """

    height: int
    width: int
    channels: int
    mean: tuple
    std: tuple

    def __post_init__(self):
        # From JSON they come as lists.
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not is_whole(self.channels, 1) or self.channels not in (1, 3):
            raise UsageError(f"channels must be 1 (grey) or 3 (RGB). Got {self.channels!r}.")
        for name in ("height", "width"):
            size = getattr(self, name)
            if not is_whole(size, 1):
                raise UsageError(f"{name} must be a number of pixels. Got {size!r}.")
        if self.height * self.width > MAX_PIXELS:
            raise UsageError(
                f"height and width must make at most {MAX_PIXELS:,} pixels. Got {self.height} x {self.width}."
            )
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != self.channels or not all(np.isfinite(np.float32(values))):
                raise UsageError(f"{name} must hold {self.channels} numbers, one a channel. Got {values!r}.")
        if min(np.float32(self.std)) <= 0:
            raise UsageError(f"std must hold positive numbers. Got {self.std!r}.")

    def as_dict(self):
        """The fields as JSON holds them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored, path):
        """From the JSON object in `path`; UsageError where that holds none."""
        try:
            return cls(**stored)
        except (TypeError, ValueError, OverflowError) as error:
            reason = reason_of(error)
            raise UsageError(f"{path} does not describe images as training writes it ({reason}).") from None

    def pixels(self, images):
        """Images uint8 [h, w, channels] of any sizes as one array uint8 [B, height, width, channels]."""
        return np.stack([resized(image, self.height, self.width) for image in images])

    def normalized(self, pixels):
        """Pixels [..., channels] from 0 to 255 as the float32 numbers that the model takes.

        Args:
            pixels: a NumPy array, or a float32 tensor.
        """
        mean, std = (np.asarray(values, np.float32) for values in (self.mean, self.std))
        pixels = pixels.astype(np.float32) if isinstance(pixels, np.ndarray) else pixels
        return (pixels / np.float32(255) - mean) / std

    # As it was called at first.
    normalised = normalized


@dataclass(frozen=True, kw_only=True)
class ImageTask(ImageInput):
    """What a classifier of images takes and what its answers are called, kept with every run and every export.

    Args:
        labels: names of the classes, in the order of the model's logits. The others: see `ImageInput`.

    Raises:
        UsageError: numbers that do not fit together.

    Example:
        >>> task = ImageTask(labels=("cat", "dog"), height=64, width=64, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> task.normalized(task.pixels([read_image("cat.jpg"), read_image("dog.png")])).shape
        (2, 64, 64, 3)
    """

    labels: tuple

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.labels, str):
            raise UsageError(f"labels must be a list of names. Got {self.labels!r}.")
        object.__setattr__(self, "labels", tuple(self.labels))
        if not self.labels or not all(isinstance(label, str) for label in self.labels):
            raise UsageError(f"labels must be the names of the classes. Got {self.labels!r}.")
