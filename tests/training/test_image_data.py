"""Labelled images: where they are read from, how they are split, batched and changed."""

import gzip
import os
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_attention.errors import UsageError
from keras_attention.images import ImageTask
from keras_attention.training.vision import augmentation_names
from keras_attention.training.vision.augmentation import Augmentation
from keras_attention.training.vision.image_data import (
    ImageBatches,
    evaluation_dataset,
    split_images,
    stratified_split,
)
from keras_attention.training.vision.image_sources import ImageSource, LabelledImages, read_source

H, W = 5, 7


def labelled(rng, count, classes, channels=1):
    images = rng.integers(0, 256, (count, H, W, channels), dtype=np.uint8)
    return LabelledImages(images, (np.arange(count) % classes).astype(np.int32))


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


# ---- sources -----------------------------------------------------------------------------------------------------


def test_digits_need_no_download_and_are_split_alike_every_time():
    source = read_source("digits")
    assert source.known.images.shape == (1797, 8, 8, 1) and source.known.images.max() == 255
    assert source.names == tuple("0123456789")
    data = split_images(source, validation=0.1, test=0.2)
    again = split_images(read_source("digits"), validation=0.1, test=0.2)
    assert data.fingerprint() == again.fingerprint()
    counts = np.bincount(source.known.labels)
    np.testing.assert_array_equal(np.bincount(data.splits["test"].labels), np.round(counts * 0.2))
    everything = np.concatenate([part.images for part in data.splits.values()]).reshape(1797, -1)
    np.testing.assert_array_equal(*(np.sort(x, axis=0) for x in (everything, source.known.images.reshape(1797, -1))))
    pixels = data.splits["train"].images / 255
    assert data.task.mean == (round(pixels.mean(), 4),) and data.task.std == (round(pixels.std(), 4),)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_bring_their_own_test_images(rng, tmp_path, zipped):
    train, test = labelled(rng, 12, 3), labelled(rng, 5, 3)
    for part, name in ((train, "train24k"), (test, "t10k")):
        for kind, array in (("images-idx3", part.images[..., 0]), ("labels-idx1", part.labels.astype(np.uint8))):
            content = idx(array)
            path = tmp_path / f"{name}-{kind}-ubyte{'.gz' * zipped}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    source = read_source(str(tmp_path))
    for got, want in ((source.known, train), (source.test, test)):
        np.testing.assert_array_equal(got.images, want.images)
        np.testing.assert_array_equal(got.labels, want.labels)
    data = split_images(source, validation=0.25, test=0.2)
    np.testing.assert_array_equal(data.splits["test"].images, test.images)
    assert len(data.splits["train"]) == 9

    def refused(name, content):
        path = tmp_path / (name + ".gz" * zipped)
        whole = path.read_bytes()
        path.write_bytes(content(whole))
        with pytest.raises(UsageError) as raised:
            read_source(str(tmp_path))
        path.write_bytes(whole)
        return str(raised.value)

    cut = refused("train24k-images-idx3-ubyte", lambda whole: whole[:-9])
    assert "train24k-images" in cut and ("cannot be read" if zipped else "its header says [12, 5, 7]") in cut
    assert "is no IDX file" in refused("t10k-labels-idx1-ubyte", lambda whole: b"hello world")
    short = idx(test.labels[:-1].astype(np.uint8))
    assert "images [5, 5, 7], labels [4]" in refused("t10k-labels-idx1-ubyte", lambda whole: short)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(UsageError, match=r"one file train\*images-idx3-ubyte"):
        read_source(str(tmp_path))


def test_folders_of_classes(rng, tmp_path):
    pixels = rng.integers(0, 256, (4, 9, 6, 3), dtype=np.uint8)
    for name, image in zip(("cat/a.png", "cat/b.bmp", "dog/c.png", "dog/d.PNG"), pixels):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / name, format=None if name != "dog/d.PNG" else "PNG")
    (tmp_path / "dog" / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "dog" / "notes.txt").write_text("not looked at", encoding="utf-8")
    (tmp_path / ".hidden").mkdir()
    source = read_source(str(tmp_path), size=9)
    assert source.names == ("cat", "dog") and source.known.labels.tolist() == [0, 0, 1, 1]
    assert source.known.images.shape == (4, 9, 9, 3) and source.of_files
    want = np.asarray(Image.fromarray(pixels[2]).resize((9, 9), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(source.known.images[2], want)
    assert len(source.notes) == 1 and "broken.jpg" in source.notes[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty holds no image that can be read"):
        read_source(str(tmp_path))
    with pytest.raises(UsageError, match="at least two classes"):
        read_source(str(tmp_path / "cat"))
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    with pytest.raises(UsageError, match=r"/caf\? has a name that is not UTF-8. Rename it"):
        read_source(str(tmp_path))


def test_npz_files(rng, tmp_path):
    path = tmp_path / "a.npz"

    def refused(**arrays):
        np.savez(path, **arrays)
        with pytest.raises(UsageError) as raised:
            read_source(str(path))
        assert str(path) in str(raised.value)
        return str(raised.value)

    images = rng.integers(0, 256, (6, H, W, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=np.array([7, 3, 7, 3, 9, 9]))
    source = read_source(str(path))
    assert source.names == ("3", "7", "9") and source.known.labels.tolist() == [1, 0, 1, 0, 2, 2]
    np.savez(path, images=images[..., 0], labels=np.array(["b", "a"] * 3))
    source = read_source(str(path))
    assert source.names == ("a", "b") and source.known.images.shape == (6, H, W, 1)
    assert "labels not found" in refused(images=images)
    assert "Got float64" in refused(images=images / 255, labels=np.zeros(6, int))
    assert "6 integers or strings. Got int64 [5]" in refused(images=images, labels=np.zeros(5, int))
    assert "cannot be read" in refused(images=images, labels=np.array([{}] * 6))
    assert r"must be UTF-8. Got b'caf\xe9'; store" in refused(images=images, labels=np.array([b"caf\xe9", b"tea"] * 3))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match="cannot be read"):
        read_source(str(path))
    for missing in ("nowhere.npz", "nowhere"):
        with pytest.raises(UsageError, match=f"{missing} does not exist"):
            read_source(str(tmp_path / missing))
    (tmp_path / "b.csv").write_text("1", encoding="utf-8")
    with pytest.raises(UsageError, match=r"b\.csv is no \.npz file"):
        read_source(str(tmp_path / "b.csv"))


# ---- splits and batches ------------------------------------------------------------------------------------------


def test_a_split_takes_a_share_of_every_class(rng):
    labels = rng.permutation(np.repeat([0, 1, 2], [50, 20, 1]))
    rest, held_out = stratified_split(labels, 0.2, seed=0)
    assert np.bincount(labels[held_out], minlength=3).tolist() == [10, 4, 0]
    assert sorted([*rest, *held_out]) == list(range(71))
    with pytest.raises(UsageError, match="at least two"):
        split_images(ImageSource(labelled(rng, 4, 1), ("a",), "one"), validation=0.1, test=0.1)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"validation": 0.1, "test": 0.3}, ["validation: a share of 0.1"]),
        ({"validation": 0.1, "test": 0.05}, ["validation: a share of 0.1", "test: a share of 0.05"]),
        ({"validation": 0, "test": 0}, []),
        ({"validation": 0.3, "test": 0.3}, []),
    ],
    ids=str,
)
def test_a_split_that_gets_no_image_is_said(rng, shares, said):
    """Case 105: classes of 4 and 2 images."""
    known = LabelledImages(rng.integers(0, 256, (6, 3, 5, 1), np.uint8), np.array([0, 0, 0, 0, 1, 1], np.int32))
    data = split_images(ImageSource(known, ("a", "b"), "six", notes=["one file"]), **shares)
    empty = {split for split in shares if not len(data.splits[split])}
    assert empty == {words.partition(":")[0] for words in said} | {
        split for split, share in shares.items() if not share
    }
    assert data.notes[0] == "one file" and len(data.notes) == 1 + len(said)
    for note, words in zip(data.notes[1:], said):
        assert note.startswith(f"no image is held out for {words} of each class rounds to 0.")


def test_batches_depend_on_seed_epoch_and_step_alone(rng):
    part = labelled(rng, 23, 4)
    task = ImageTask(labels=tuple("abcd"), height=H, width=W, channels=1, mean=(0.4,), std=(0.3,))
    changes = Augmentation(("shift", "flip"), height=H, width=W, channels=1, seed=5)
    batches = ImageBatches(part, task, batch_size=4, seed=5, augmentation=changes)
    assert len(batches) == 5
    whole = batches.dataset()
    epochs = [[(x.numpy(), y.numpy()) for x, y in whole] for _ in range(2)]
    assert np.abs(epochs[0][0][0] - epochs[1][0][0]).max() > 0.1
    later = [(x.numpy(), y.numpy()) for x, y in batches.dataset(1, 3)]
    assert len(later) == 2
    for got, want in zip(later, epochs[1][3:]):
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    # Unchanged images are those of the part, normalized, each at most once an epoch.
    plain = ImageBatches(part, task, batch_size=4, seed=5, augmentation=lambda x, y, number: (x, y))
    seen = np.concatenate([x.numpy() for x, _ in plain.dataset()])
    known = (part.images / 255 - 0.4) / 0.3
    found = [int(np.abs(known - x).max(axis=(1, 2, 3)).argmin()) for x in seen]
    assert len(set(found)) == 20
    np.testing.assert_allclose(seen, known[found], atol=1e-5)
    ordered = np.concatenate([x.numpy() for x, _ in evaluation_dataset(part, task, batch_size=6)])
    np.testing.assert_allclose(ordered, known, atol=1e-5)


def test_every_augmentation_keeps_shapes_and_shares(rng):
    pixels = tf.constant(rng.uniform(0, 255, (6, H, W, 1)), tf.float32)
    labels = tf.one_hot([0, 1, 2, 0, 1, 2], 3)
    for names in [*((name,) for name in augmentation_names.NAMES), augmentation_names.NAMES]:
        change = Augmentation(names, height=H, width=W, channels=1, fill=9.0, seed=1)
        data = tf.data.Dataset.range(2).map(lambda number, change=change: change(pixels, labels, number))
        (first, shares), (second, _) = list(data)
        assert first.shape == pixels.shape
        assert np.abs(first - pixels).max() > 1 and np.abs(first - second).max() > 1, names
        assert np.min(first) >= 0 and np.max(first) <= 255.01
        np.testing.assert_allclose(tf.reduce_sum(shares, axis=1), 1, atol=1e-5)
        assert ("mixup" in names or "cutmix" in names) == bool(np.abs(shares - labels).max() > 0), names
    assert augmentation_names.parse("flip, crop") == ("crop", "flip") and augmentation_names.parse("none") == ()
    with pytest.raises(UsageError, match="Got 'twist'"):
        augmentation_names.parse("twist")
