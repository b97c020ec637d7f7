"""Pixels as clients send them, made into a model's numbers inside a graph; what clients are told of it."""

import tensorflow as tf

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow has it
_BILINEAR = 2  # Pillow's number for it


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


def normalised(pixels, images):
    """Pixels float32 [..., C] from 0 to 255 as the model's numbers; see `ImageTask`."""
    return (pixels / 255.0 - tf.constant(images.mean, tf.float32)) / tf.constant(images.std, tf.float32)


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
