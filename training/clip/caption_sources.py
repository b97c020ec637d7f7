"""Images and their captions from where people keep them: an .npz file with JSON, or a folder with a table."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.files import read_json
from keras_attention.images.files import read_image, resized
from keras_attention.training.vision.image_sources import FOLDER_SIZE

_CAPTION_KEYS = ("caption", "annotation")


@dataclass(frozen=True)
class Captioned:
    """Images and what is said of them, in order.

    Attributes:
        images: uint8 [N, H, W, C].
        captions: N texts.
        tags: N tuples of further words, each empty where there are none.
        groups: N names of what each belongs to, "" where that is not known.
        origin: where they came from, in words.
        notes: what was left out, a line each.
    """

    images: np.ndarray
    captions: list
    tags: list
    groups: list
    origin: str
    notes: list = field(default_factory=list)

    def __len__(self):
        return len(self.captions)

    def chosen(self, indices):
        """Those with these indices, without notes."""
        captions, tags, groups = ([some[i] for i in indices] for some in (self.captions, self.tags, self.groups))
        return Captioned(self.images[indices], captions, tags, groups, self.origin)

    def whole_texts(self):
        """Each caption with all its tags behind it."""
        return [" ".join((caption, *tags)) for caption, tags in zip(self.captions, self.tags)]


def read_captioned(data, captions, size=None):
    """The images and captions that `--data` and `--captions` name.

    Args:
        data: an .npz file with `images`, uint8 [N, H, W] or [N, H, W, 1 or 3], or a folder of image files.
        captions: a .json file: a list of objects with "caption" (or "annotation"), and where known "tags" (a list, or
            a text with commas between; keys that end in "_tags" count as well) and "group"; for a folder also "file".
            Or, for a folder, a .tsv file with lines `file<TAB>caption` or `file<TAB>caption<TAB>group`.
        size: height and width to bring all images to; None keeps those of an .npz file, and is 64 for a folder.

    Raises:
        UsageError: nothing there, or what is there is not as expected.
    """
    data, captions = Path(data), Path(captions)
    if not data.exists():
        raise UsageError(f"{data} does not exist. Give an .npz file with images, or a folder of image files.")
    rows = _read_json(captions) if captions.suffix == ".json" else _read_table(captions)
    if data.is_dir():
        return _from_folder(data, captions, rows, size or FOLDER_SIZE)
    images = _read_images(data)
    if captions.suffix != ".json":
        raise UsageError(f"The captions of {data} are a .json file with one object for each image. Got {captions}.")
    if len(rows) != len(images):
        raise UsageError(f"{captions} must hold a caption for each of the {len(images)} images. Got {len(rows)}.")
    if size is not None:
        images = np.stack([resized(image, size, size) for image in images])
    return Captioned(images, *_columns(rows), data.name)


def _from_folder(folder, captions, rows, size):
    kept, images, notes = [], [], []
    for row in rows:
        name = row["file"]
        if not name:
            raise UsageError(f"{captions} must name the file of each image in {folder}. Got none for a caption.")
        try:
            images.append(resized(read_image(folder / name), size, size))
            kept.append(row)
        except UsageError as error:
            notes.append(f"left out: {error}")
    if not images:
        raise UsageError(f"None of the {len(rows)} images that {captions} names can be read; first: {notes[0][10:]}")
    return Captioned(np.stack(images), *_columns(kept), folder.name, notes)


def _columns(rows):
    return [row["caption"] for row in rows], [row["tags"] for row in rows], [row["group"] for row in rows]


def _read_images(path):
    try:
        with np.load(path, allow_pickle=False) as file:
            images = file["images"]
    except KeyError:
        raise UsageError(f"{path} must hold an array named images.") from None
    except Exception as error:
        # NumPy, zipfile and zlib each raise their own for a damaged file.
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} cannot be read ({reason}). Give an .npz file with images, or a folder.") from None
    shape = list(images.shape)
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise UsageError(
            f"images in {path} must be uint8 [N, H, W] or [N, H, W, 1 or 3]. Got {images.dtype.name} {shape}."
        )
    return images


def _read_text(path):
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Give a .json or .tsv file with captions.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8. Convert it, for instance with iconv.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from None


def _read_json(path):
    content = read_json(path, list, "Give a .json file with a list of objects, one for each image.")
    if not content or not all(isinstance(row, dict) for row in content):
        raise UsageError(f"{path} must hold a list of objects, one for each image.")
    return [_row(path, number, given) for number, given in enumerate(content, 1)]


def _row(path, number, given):
    caption = next((given[key] for key in _CAPTION_KEYS if given.get(key)), None)
    tags = []
    for key, value in given.items():
        if key == "tags" or key.endswith("_tags"):
            value = value.split(",") if isinstance(value, str) else value or []
            tags += value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in (caption, *tags)) or not caption.strip():
        raise UsageError(
            f"Object {number} in {path} must have a text under {' or '.join(map(repr, _CAPTION_KEYS))}, and its tags, "
            "where it has some, must be texts."
        )
    return {
        "file": str(given.get("file") or ""),
        "caption": _spaced(caption),
        # Each once, in order.
        "tags": tuple(dict.fromkeys(_spaced(tag) for tag in tags if tag.strip())),
        "group": str(given.get("group") or ""),
    }


def _read_table(path):
    rows = []
    # Reading has made every line end one newline; `splitlines` would also cut at characters inside a caption.
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        file, *rest = line.split("\t")
        if len(rest) not in (1, 2) or not file.strip() or not rest[0].strip():
            raise UsageError(f"Line {number} of {path} must be FILE<TAB>CAPTION or FILE<TAB>CAPTION<TAB>GROUP.")
        group = rest[1].strip() if len(rest) == 2 else ""
        rows.append({"file": file.strip(), "caption": _spaced(rest[0]), "tags": (), "group": group})
    if not rows:
        raise UsageError(f"{path} is empty. Expected lines of FILE<TAB>CAPTION.")
    return rows


def _spaced(text):
    return " ".join(text.split())
