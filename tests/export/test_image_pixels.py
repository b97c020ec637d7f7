"""Encoded files in the served graph against `read_image`: every format, kind of colour and depth that both decode."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export.kinds.image_pixels import colours, decoded
from keras_attention.images import read_image

pil = pytest.importorskip("PIL.Image", reason="needs the extra [vision]")

H, W = 5, 7
PIXELS = np.random.default_rng(3).integers(0, 256, (H, W, 4), dtype=np.uint8)
WIDE = np.clip(PIXELS[..., 0].astype(int) * 257 + np.random.default_rng(4).integers(-120, 120, (H, W)), 0, 65535)
RGB, GREY = pil.fromarray(PIXELS[..., :3]), pil.fromarray(PIXELS[..., 0])


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bmp(header, compression, alpha_mask):
    """A BMP of 32 bits a pixel by hand: case 53 is header 40 without compression, whose fourth byte means nothing."""
    rows = PIXELS[::-1, :, [2, 1, 0, 3]].tobytes()
    info = struct.pack("<IiiHHIIiiII", header, W, H, 1, 32, compression, len(rows), 2835, 2835, 0, 0)
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, alpha_mask)
    rest = masks + bytes(header - 56) if header >= 56 else masks[:12] if compression == 3 else b""
    start = 14 + len(info) + len(rest)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + info + rest + rows


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(depth, colours, values, *chunks):
    """A PNG by hand, for what Pillow does not write."""
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    head = struct.pack(">IIBBBBB", W, H, depth, colours, 0, 0, 0)
    parts = [chunk(b"IHDR", head), *chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def one_is_transparent(values):
    return chunk(b"tRNS", np.atleast_1d(values[2, 3]).astype(">u2").tobytes())


DEEP = np.random.default_rng(5).integers(0, 65536, (H, W, 4)).astype(">u2")
FILES = {
    "BMP of 32 bits": bmp(40, 0, 0),
    "BMP of 32 bits, fields": bmp(40, 3, 0),
    "BMP of 32 bits, no mask": bmp(108, 3, 0),
    "BMP of 32 bits, mask unused": bmp(108, 0, 0xFF000000),
    "BMP with alpha": bmp(108, 3, 0xFF000000),
    "BMP with alpha, short header": bmp(56, 3, 0xFF000000),
    "BMP of 24 bits": saved(RGB, "BMP"),
    "BMP of grey": saved(GREY, "BMP"),
    "BMP with a palette": saved(RGB.quantize(5), "BMP"),
    "PNG": saved(RGB, "PNG"),
    "PNG with alpha": saved(pil.fromarray(PIXELS), "PNG"),
    "PNG of grey and alpha": saved(pil.fromarray(PIXELS[..., :2].copy(), "LA"), "PNG"),
    "PNG of grey": saved(GREY, "PNG"),
    "PNG of 16 bits": saved(pil.fromarray(WIDE.astype(np.uint16)), "PNG"),
    "PNG of 16 bits and three colours": png(16, 2, DEEP[..., :3]),
    "PNG of 16 bits with alpha": png(16, 6, DEEP),
    "PNG of 16 bits, grey and alpha": png(16, 4, DEEP[..., :2]),
    "PNG of 16 bits, one transparent": png(16, 0, DEEP[..., 0], one_is_transparent(DEEP[..., 0])),
    "PNG, one colour transparent": png(8, 2, PIXELS[..., :3], one_is_transparent(PIXELS[..., :3])),
    "PNG of grey, one transparent": png(8, 0, PIXELS[..., 0], one_is_transparent(PIXELS[..., 0])),
    "PNG of four bits": png(4, 0, PIXELS[:, :4, 0]),
    "PNG with a palette and alpha": png(
        8, 3, PIXELS[..., 0] % 5, chunk(b"PLTE", PIXELS[0, :5, :3].tobytes()), chunk(b"tRNS", bytes([0, 128, 255, 30]))
    ),
    "PNG of one bit": saved(GREY.convert("1"), "PNG"),
    "PNG with a palette": saved(RGB.quantize(5), "PNG"),
    "GIF": saved(RGB.quantize(5), "GIF"),
    "JPEG": saved(RGB.resize((61, 43)), "JPEG"),
    "JPEG with coarse colours": saved(RGB.resize((61, 43)), "JPEG", subsampling=2, progressive=True),
    "JPEG of grey": saved(GREY, "JPEG"),
    "JPEG of CMYK": saved(pil.fromarray(PIXELS, "CMYK"), "JPEG"),
}


@pytest.fixture(scope="module")
def graph():
    spec = tf.TensorSpec([], tf.string)
    return {c: tf.function(lambda x, c=c: colours(decoded(x)[None], c)[0], input_signature=[spec]) for c in (1, 3)}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_file_has_the_pixels_that_read_image_gives(tmp_path, graph, channels, subtests):
    for name, content in FILES.items():
        with subtests.test(name):
            path = tmp_path / "image"
            path.write_bytes(content)
            want = read_image(path, channels).astype(int)
            got = graph[channels](tf.constant(content)).numpy()
            # Two ways to turn inks into light round apart by one.
            tolerance = 1 if "CMYK" in name else 0
            np.testing.assert_allclose(np.round(got), want, atol=tolerance + (channels == 1))


def test_what_is_no_image_is_an_error(graph):
    for content in (b"", b"BM", b"\x89PNG", b"\xff\xd8", b"nothing", FILES["BMP of 32 bits"][:60]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            graph[3](tf.constant(content))
