"""Image files as 8-bit arrays, whatever their format, colours and turning; a bad one is one clear line."""

import importlib
import warnings
from pathlib import Path

import numpy as np

from keras_attention.errors import UsageError

# What Pillow decodes by itself; JPEG includes the MPO of phones. Left out are formats that start other programs (EPS),
# and those that need plug-ins of their own.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = (".bmp", ".gif", ".jpe", ".jpeg", ".jpg", ".mpo", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
# A file of a few kilobytes can ask for gigabytes: 100 million pixels are 300 MB as RGB.
MAX_PIXELS = 100_000_000


def require_pillow(module="Image"):
    """A module of Pillow, or the one error that names what to install."""
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError as error:
        raise UsageError(
            f"Image files need Pillow, which cannot be imported ({error}): pip install 'keras-attention[vision]'"
        ) from None


def read_image(path, channels=3):
    """One image file as an array.

    The format is recognised by the content, not by the name. The EXIF orientation is applied; what
    is transparent becomes white; of an animation the first frame is taken; CMYK and other colours become RGB; 16 bits
    are rounded to 8.

    Args:
        path: a file in one of `FORMATS`.
        channels: 3 for RGB, 1 for grey (luma of ITU-R BT.601).

    Returns:
        uint8 [H, W, channels].

    Raises:
        UsageError: no file, no image, a damaged or truncated one, one of more than `MAX_PIXELS` pixels, or one of
            floating-point pixels, which have no agreed range. The message names the file.

    Example:
        >>> read_image("photo.jpg").shape
        (480, 640, 3)
    """
    pillow, path = require_pillow(), Path(path)
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder. Give image files.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, whose limit is below, and of odd metadata
            with pillow.open(path, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise pillow.DecompressionBombError
                image.load()
                return _array(image, channels, path)
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Give an image file.") from None
    except pillow.UnidentifiedImageError:
        raise UsageError(f"{path} is no image that can be read. Expected one of {', '.join(FORMATS)}.") from None
    except pillow.DecompressionBombError:
        raise UsageError(f"{path} has more than {MAX_PIXELS:,} pixels. Make it smaller first.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UsageError(f"{path} cannot be read ({error.strerror}). Give an image file.") from None
        # Pillow's decoders raise whatever the broken bytes lead them into.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"{path} is a damaged or truncated image ({reason}). Save it again.") from None


def resized(image, height, width):
    """An image uint8 [h, w, C] in another size, uint8 [height, width, C].

    Bilinear, with the filter widened where the image gets smaller, so that no pixel is skipped; the ratio of the sides
    is not kept. Hugging Face's ViTImageProcessor resizes by the same function.
    """
    if image.shape[:2] == (height, width):
        return image
    pillow = require_pillow()
    picture = pillow.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    small = np.asarray(picture.resize((width, height), pillow.Resampling.BILINEAR))
    return small.reshape(height, width, image.shape[2])


def _array(image, channels, path):
    pillow, operations = require_pillow(), require_pillow("ImageOps")
    image = operations.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = pillow.fromarray(_eight_bits(np.asarray(image), path))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    if channels == 1:
        image = image.convert("L")
    return np.asarray(image).reshape(image.height, image.width, channels)


def _eight_bits(values, path):
    """Pixels of 16 bits, which some formats give as 32, as 8 bits: white stays white."""
    if values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535:
        raise UsageError(
            f"{path} has {values.dtype.name} pixels, which have no agreed range. Save it with 8 or 16 bits."
        )
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
