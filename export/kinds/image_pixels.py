"""Pixels as clients send them, made into a model's numbers inside a graph; what clients are told of it."""

import tensorflow as tf

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow has it
_BILINEAR = 2  # Pillow's number for it
_BIT_FIELDS = 3  # the kind of BMP that says which bits are which colour


def decoded(content):
    """The pixels uint8 [h, w, 1 to 4] of one encoded file, a string scalar, as `read_image` has them.

    With its alpha channel where it has one; 16 bits become 8. The EXIF orientation is not applied, and what is
    transparent in a GIF has the colour that TensorFlow gives it.
    """

    def jpeg():
        return tf.io.decode_jpeg(content, channels=0, dct_method="INTEGER_ACCURATE")  # Pillow's

    def png_without_alpha():
        # One colour that is transparent becomes alpha only where alpha is asked for.
        return tf.io.decode_png(content, channels=4)

    def deep_grey_png():
        # `read_image` rounds 16 bits of grey, and drops the low 8 of colours, as TensorFlow does.
        wide = tf.io.decode_png(content, channels=1, dtype=tf.uint16)
        return tf.cast((tf.cast(wide, tf.int32) + 128) // 257, tf.uint8)

    def other():
        return tf.io.decode_image(content, channels=0, expand_animations=False)

    def begins(mark):
        return tf.strings.substr(content, 0, len(mark)) == mark

    head = tf.cast(tf.io.decode_raw(content, tf.uint8, fixed_length=72), tf.int64)  # zeros where the file is shorter
    is_png, depth, kind = begins(b"\x89PNG"), head[24], head[25]
    pixels = tf.case(
        [
            (begins(b"\xff\xd8"), jpeg),
            (is_png & (depth == 16) & (kind == 0), deep_grey_png),
            (is_png & (depth == 8) & ((kind == 0) | (kind == 2)), png_without_alpha),
            (begins(b"BM"), lambda: _bmp(content, head, other())),
        ],
        default=other,
    )
    pixels.set_shape([None, None, None])
    return pixels


def _bmp(content, header, values):
    """The pixels of a BMP, whose values [h, w, 1, 3 or 4] TensorFlow takes as they stand in the file.

    One byte a pixel is a place in the file's table of colours; a fourth byte is opacity only where a mask says so.
    """

    # 14 bytes of the file's header, then the image's, which says its own size, and from 56 bytes on has four masks.
    def number(start):
        return tf.reduce_sum(header[start : start + 4] * tf.constant([1, 1 << 8, 1 << 16, 1 << 24], tf.int64))

    size = number(14)
    has_alpha = (size >= 56) & (number(30) == _BIT_FIELDS) & (number(66) != 0)

    def colours_of_table():
        table = tf.io.decode_raw(
            tf.strings.substr(content, 14 + tf.cast(size, tf.int32), 1024), tf.uint8, fixed_length=1024
        )
        return tf.gather(tf.reshape(table, [256, 4])[:, 2::-1], tf.cast(values[..., 0], tf.int32))

    channels = tf.shape(values)[-1]
    return tf.cond(channels == 1, colours_of_table, lambda: values[..., : tf.where(has_alpha, channels, 3)])


def colours(pixels, channels):
    """Pixels uint8 [B, h, w, 1 to 4] as float32 [B, h, w, channels]: what is transparent becomes white."""
    given = tf.shape(pixels)[-1]
    values = tf.cast(pixels, tf.float32)
    # Two and four channels end with opacity, the others have none.
    has_alpha = given % 2 == 0
    alpha = tf.where(has_alpha, values[..., -1:] / 255.0, tf.ones_like(values[..., -1:]))
    colour = values[..., : given - tf.cast(has_alpha, tf.int32)]
    # Grey counts as three equal colours.
    rgb = tf.tile(colour, [1, 1, 1, 3 // tf.shape(colour)[-1]])
    rgb = tf.ensure_shape(rgb, [None, None, None, 3]) * alpha + 255.0 * (1.0 - alpha)
    return rgb if channels == 3 else tf.round(luma(rgb))


def luma(rgb):
    """Colours [..., 3] as grey [..., 1]."""
    return tf.reduce_sum(rgb * tf.constant(_LUMA), axis=-1, keepdims=True)


def sized(pixels, images):
    """Pixels float32 [B, h, w, C] in the task's size, as whole numbers: bilinear, antialiased as Pillow does it."""
    size = (images.height, images.width)
    small = tf.image.resize(pixels, size, method="bilinear", antialias=True)
    # The filter's weights do not always add up to 1 exactly: an image that has the size already stays as it is.
    return tf.clip_by_value(tf.round(small), 0.0, 255.0)


def processor_config(images):
    """What preprocessor_config.json says of the images of an `ImageInput`, as AutoImageProcessor reads it."""
    repeat = 3 // images.channels
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": images.height, "width": images.width},
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(images.mean) * repeat,
        "image_std": list(images.std) * repeat,
    }
