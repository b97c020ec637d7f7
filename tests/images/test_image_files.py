"""Any image file that a user may have: the right pixels, or one line that names the file."""

import numpy as np
import pytest
from PIL import Image

from keras_attention.errors import UsageError
from keras_attention.images import files
from keras_attention.images.files import read_image, resized

H, W = 6, 9


@pytest.fixture
def picture(rng):
    """Smooth random colours, which JPEG keeps nearly as they are: uint8 [H, W, 3]."""
    coarse = rng.integers(0, 256, (2, 3, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((W, H), Image.Resampling.BICUBIC))


def luma(rgb):
    return np.rint(rgb.astype(np.float64) @ [0.299, 0.587, 0.114])


def assert_near(got, want, levels):
    assert got.dtype == np.uint8 and got.shape == want.shape
    assert np.abs(got.astype(int) - np.asarray(want).astype(int)).max() <= levels


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "webp", "gif", "jpg"])
def test_every_format_gives_its_pixels(picture, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    image = Image.fromarray(picture)
    (image.quantize(54, dither=Image.Dither.NONE) if suffix == "gif" else image).save(path, **options)
    assert_near(read_image(path), picture, {"jpg": 4, "gif": 12}.get(suffix, 0))
    assert_near(read_image(path, channels=1)[..., 0], luma(picture), {"jpg": 5, "gif": 13}.get(suffix, 1))


def test_the_name_does_not_decide(picture, tmp_path):
    Image.fromarray(picture).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "really_png.jpg")
    np.testing.assert_array_equal(read_image(tmp_path / "really_png.jpg"), picture)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_other_colours_become_rgb_and_grey(picture, tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode in ("CMYK", "YCbCr") else "a.png")
    image = Image.fromarray(picture).convert(mode)
    image.save(path, **({"quality": 100, "subsampling": 0} if path.suffix == ".jpg" else {}))
    want = np.asarray(image.convert("RGB"))
    assert_near(read_image(path), want, 6 if path.suffix == ".jpg" else 0)
    assert read_image(path, channels=1).shape == (H, W, 1)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_becomes_white(picture, rng, tmp_path, mode):
    alpha = rng.integers(0, 256, (H, W), dtype=np.uint8) if mode != "P" else np.where(picture[..., 0] > 100, 255, 0)
    colour = picture if mode != "LA" else np.repeat(luma(picture)[..., None], 3, axis=-1).astype(np.uint8)
    path = tmp_path / "a.png"
    if mode == "P":
        indexed = Image.fromarray(picture).quantize(8, dither=Image.Dither.NONE)
        indexed.save(path, transparency=0)
        alpha = np.where(np.asarray(indexed) == 0, 0, 255)
        colour = np.asarray(indexed.convert("RGB"))
    elif mode == "LA":
        Image.merge("LA", [Image.fromarray(colour[..., 0]), Image.fromarray(alpha)]).save(path)
    else:
        Image.fromarray(np.dstack([picture, alpha])).save(path)
    share = alpha[..., None] / 255.0
    assert_near(read_image(path), np.rint(colour * share + 255 * (1 - share)), 1)


def test_sixteen_bits_are_rounded_and_floats_refused(rng, tmp_path):
    deep = rng.integers(0, 65536, (H, W), dtype=np.uint16)
    for name in ("a.png", "a.tiff", "a.pgm"):
        Image.fromarray(deep).save(tmp_path / name)
        assert_near(read_image(tmp_path / name, channels=1)[..., 0], np.rint(deep / 65535 * 255), 0)
    Image.fromarray(rng.random((H, W), dtype=np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(UsageError, match=r"f\.tiff has float32 pixels, which have no agreed range"):
        read_image(tmp_path / "f.tiff")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_turning_of_a_camera_is_carried_out(picture, tmp_path, orientation):
    flipped = {1: picture, 2: picture[:, ::-1], 3: picture[::-1, ::-1], 4: picture[::-1]}
    # Of the others the file holds rows and columns exchanged.
    flipped |= {5: picture.transpose(1, 0, 2), 6: np.rot90(picture, 1), 7: picture[::-1, ::-1].transpose(1, 0, 2)}
    stored = flipped.get(orientation, np.rot90(picture, -1))
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), picture)


def test_the_first_frame_of_an_animation_is_taken(picture, tmp_path):
    frames = [Image.fromarray(frame) for frame in (picture, 255 - picture)]
    for name in ("a.webp", "a.png", "a.tiff"):
        options = {"lossless": True} if name == "a.webp" else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(read_image(tmp_path / name), picture)


def test_extreme_sizes(rng, tmp_path):
    for height, width in ((1, 1), (10, 10_000), (10_000, 10)):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read_image(tmp_path / "a.png"), pixels)
        assert resized(pixels, 5, 4).shape == (5, 4, 3)
    # Every pixel counts where an image gets smaller.
    stripes = np.tile(np.array([[0], [255]], np.uint8), (1, 5000)).T.reshape(1, -1, 1).repeat(8, axis=0)
    assert_near(resized(stripes, 2, 2), np.full((2, 2, 1), 127.5), 2)


def test_bad_files_are_one_line_that_names_them(picture, tmp_path, monkeypatch):
    def refused(name, content=None):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError) as raised:
            read_image(tmp_path / name)
        assert str(tmp_path / name) in str(raised.value) and "\n" not in str(raised.value)
        return str(raised.value)

    assert "does not exist" in refused("missing.png")
    assert "is no image that can be read" in refused("text.jpg", b"hello")
    assert "is no image that can be read" in refused("empty.png", b"")
    # A format that would start another program is not even looked at.
    assert "is no image that can be read" in refused("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for suffix in ("png", "jpg", "gif", "webp", "bmp"):
        Image.fromarray(picture).save(tmp_path / f"whole.{suffix}")
        whole = (tmp_path / f"whole.{suffix}").read_bytes()
        message = refused(f"cut.{suffix}", whole[: len(whole) * 2 // 3])
        assert "damaged or truncated" in message or "is no image" in message
    (tmp_path / "folder.png").mkdir()
    assert "is a folder" in refused("folder.png")
    assert "cannot be read (File name too long). Give an image file" in refused("x" * 300)
    monkeypatch.setattr(files, "MAX_PIXELS", H * W - 1)
    assert f"more than {H * W - 1} pixels" in refused("whole.png")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    # 20,000 x 20,000 pixels of one colour are a file of some tens of kilobytes.
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    with pytest.raises(UsageError, match="more than 100,000,000 pixels"):
        read_image(tmp_path / "bomb.png")
