"""Labelled images from where people keep them: scikit-learn's digits, IDX files, folders of classes, npz files."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.images.files import SUFFIXES, read_image, resized
from keras_attention.text.well_formed import well_formed

DIGITS = "digits"
FOLDER_SIZE = 64  # of the images of a folder, which may all differ, where no size is asked for


@dataclass(frozen=True)
class LabelledImages:
    """Images and the numbers of their classes.

    Attributes:
        images: uint8 [N, H, W, C].
        labels: int32 [N].
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self):
        return len(self.labels)

    def chosen(self, indices):
        """Those with these indices."""
        return LabelledImages(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class ImageSource:
    """What was read.

    Attributes:
        known: the images that training and validation are taken from, and the test too where there is no own one.
        names: of the classes.
        origin: where they came from, in words.
        test: the source's own test images, or None.
        of_files: whether every image was a file of its own, such as a photograph.
        notes: what was left out, a line each.
    """

    known: LabelledImages
    names: tuple
    origin: str
    test: LabelledImages | None = None
    of_files: bool = False
    notes: list = field(default_factory=list)


def read_source(data, size=None):
    """The images that `--data` names.

    Args:
        data: "digits", a folder with IDX files, a folder with a folder of image files for each class, or an .npz file.
        size: height and width to bring all images to; None keeps that of the data, and is 64 for a folder.

    Raises:
        UsageError: nothing there, or what is there is not as expected.
    """
    path, expected = Path(data), "Give 'digits', a folder of IDX files or of classes, or an .npz file."
    if data == DIGITS:
        source = read_digits()
    elif path.suffix == ".npz":
        source = read_npz(path)
    elif not path.exists():
        raise UsageError(f"{path} does not exist. {expected}")
    elif not path.is_dir():
        raise UsageError(f"{path} is no .npz file. {expected}")
    elif any(path.glob("*-idx*-ubyte*")):
        source = read_idx(path)
    else:
        source = read_class_folders(path, size or FOLDER_SIZE)
    return source if size is None else _in_size(source, size)


def read_digits():
    """1,797 handwritten digits of 8 x 8 pixels, which scikit-learn carries (UCI, Alpaydin and Kaynak, 1998)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            f"--data digits needs scikit-learn, which cannot be imported ({error}): "
            "pip install 'keras-attention[vision]'"
        ) from None
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 17 levels
    names = tuple(str(name) for name in digits.target_names)
    return ImageSource(LabelledImages(images, digits.target.astype(np.int32)), names, "scikit-learn's digits")


# ---- IDX ---------------------------------------------------------------------------------------------------------


def read_idx(folder):
    """A folder in the layout of MNIST: images and labels whose names begin with train and t10k, gzipped or not."""
    images, labels = (_read_idx_file(_one_file(folder, "train", kind)) for kind in ("images-idx3", "labels-idx1"))
    test_images, test_labels = (
        _read_idx_file(_one_file(folder, "t10k", kind)) for kind in ("images-idx3", "labels-idx1")
    )
    for part, some, their in (("train", images, labels), ("t10k", test_images, test_labels)):
        if some.ndim != 3 or their.ndim != 1 or len(some) != len(their) or not len(some):
            raise UsageError(
                f"The {part} files in {folder} do not belong together: images {list(some.shape)}, labels "
                f"{list(their.shape)}."
            )
    if images.shape[1:] != test_images.shape[1:]:
        raise UsageError(
            f"The train and t10k images in {folder} differ in size: {images.shape[1:]} and {test_images.shape[1:]}."
        )
    count = max(int(labels.max()), int(test_labels.max())) + 1
    known = LabelledImages(images[..., None], labels.astype(np.int32))
    test = LabelledImages(test_images[..., None], test_labels.astype(np.int32))
    return ImageSource(known, tuple(map(str, range(count))), f"IDX files in {folder.name}", test)


def _one_file(folder, part, kind):
    found = sorted(folder.glob(f"{part}*{kind}-ubyte*"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UsageError(
            f"{folder} must hold one file {part}*{kind}-ubyte[.gz], as the IDX layout of MNIST has it. Got {names}."
        )
    return found[0]


def _read_idx_file(path):
    """The array in one IDX file: two zero bytes, the type, the number of axes, their sizes big-endian, the data."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read ({error}). Restore it from a copy.") from None
    axes = content[3] if len(content) >= 4 else 0
    begin = 4 + 4 * axes
    if content[:3] != b"\x00\x00\x08" or not axes or len(content) < begin:
        raise UsageError(f"{path} is no IDX file of unsigned bytes, as MNIST and Fashion-MNIST use them.")
    shape = struct.unpack(f">{axes}I", content[4:begin])
    if len(content) - begin != math.prod(shape):
        raise UsageError(
            f"{path} is damaged: its header says {list(shape)}, and {len(content) - begin:,} bytes of data follow."
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


# ---- folders and npz ---------------------------------------------------------------------------------------------


def read_class_folders(folder, size):
    """A folder with one folder of image files for each class, whose name is the class's; hidden entries are passed by.

    All images are held in memory in the given size. A file that cannot be read is left out, with a note.
    """
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    for entry in classes:
        if entry.name != well_formed(entry.name):
            raise UsageError(f"The class folder {well_formed(str(entry))} has a name that is not UTF-8. Rename it.")
    if len(classes) < 2:
        raise UsageError(
            f"{folder} must hold a folder of image files for each of at least two classes, or IDX files. "
            f"Got {len(classes)} folder{'s' * (len(classes) != 1)}."
        )
    images, labels, notes = [], [], []
    for number, entry in enumerate(classes):
        files = sorted(path for path in entry.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        for path in files:
            try:
                images.append(resized(read_image(path), size, size))
                labels.append(number)
            except UsageError as error:
                notes.append(f"left out: {error}")
        if number not in labels[-1:]:
            raise UsageError(f"{entry} holds no image that can be read ({len(files)} image files). Fill or remove it.")
    known = LabelledImages(np.stack(images), np.array(labels, np.int32))
    return ImageSource(
        known, tuple(entry.name for entry in classes), f"folders in {folder.name}", of_files=True, notes=notes
    )


def read_npz(path):
    """An .npz file with `images`, uint8 [N, H, W] or [N, H, W, 1 or 3], and `labels`, N integers or strings."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("images", "labels") if name in file.files}
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Give an .npz file with images and labels.") from None
    except Exception as error:
        # NumPy, zipfile and zlib each raise their own for a damaged file.
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} cannot be read ({reason}). Restore it from a copy.") from None
    missing = [name for name in ("images", "labels") if name not in arrays]
    if missing:
        raise UsageError(f"{path} must hold the arrays images and labels. {' and '.join(missing)} not found.")
    images, labels = arrays["images"], arrays["labels"]
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise UsageError(
            f"images in {path} must be uint8 [N, H, W] or [N, H, W, 1 or 3]. Got {images.dtype.name} "
            f"{list(arrays['images'].shape)}."
        )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iuUS":
        raise UsageError(
            f"labels in {path} must be {len(images)} integers or strings. Got {labels.dtype.name} {list(labels.shape)}."
        )
    # Numbers are named by themselves; classes that no image has take no place among the logits.
    values, numbers = np.unique(labels, return_inverse=True)
    try:
        names = tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values)
    except UnicodeDecodeError as error:
        raise UsageError(f"labels in {path} must be UTF-8. Got {error.object!r}; store them as text.") from None
    return ImageSource(LabelledImages(images, numbers.astype(np.int32)), names, path.name)


def _in_size(source, size):
    def brought(some):
        return LabelledImages(np.stack([resized(image, size, size) for image in some.images]), some.labels)

    test = None if source.test is None else brought(source.test)
    return replace(source, known=brought(source.known), test=test)
