"""Classifiers of images as exported graphs: preprocessing inside, labels and probabilities out."""

import json

import keras
import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import Endpoint
from keras_attention.export.comparing import BATCHES
from keras_attention.export.onnx_folder.graph import Port
from keras_attention.export.report import Comparison, precision_of
from keras_attention.models.vision.image_model import ImageModel

# What `classify_bytes` decodes: the formats of tf.io.decode_image.
DECODED = ("JPEG", "PNG", "BMP", "GIF (first frame)")
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow has it
_BILINEAR = 2  # Pillow's number for it


def check(model, images):
    """Raises where a model does not classify the images of an `ImageTask`."""
    try:
        logits = model(_zeros(images, 1), training=False)
        shape = tuple(logits.shape)
    except (ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"The model does not take images of {images.height} x {images.width} x {images.channels} ({reason}). Give "
            "the ImageTask that it was trained for."
        ) from error
    if shape != (1, len(images.labels)):
        raise UsageError(
            f"The model must give one logit for each of the {len(images.labels)} labels. Got an output of shape "
            f"{shape}."
        )


def endpoints(model, images):
    """The signatures of a classifier.

    Args:
        model: `keras.Model` from normalised images [B, H, W, C] to logits [B, N].
        images: its `ImageTask`.

    Returns:
        list of `Endpoint`: `classify` (images uint8 [B, h, w, 1, 3 or 4] of any size) and `classify_bytes`
        (image_bytes string [B]); both give labels string [B], label_ids int32 [B], probabilities float32 [B, N].
    """
    names = tf.constant(images.labels)

    def answers(pixels):
        probabilities = tf.nn.softmax(tf.cast(model(normalised(pixels, images), training=False), tf.float32))
        best = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        return {"labels": tf.gather(names, best), "label_ids": best, "probabilities": probabilities}

    def classify(pixels):
        return answers(sized(colours(pixels, images.channels), images))

    def classify_bytes(encoded):
        def one(content):
            # As many channels as the file has: an alpha channel would be cut off otherwise.
            pixels = tf.io.decode_image(content, channels=0, expand_animations=False)
            pixels.set_shape([None, None, None])
            return sized(colours(pixels[None], images.channels), images)[0]

        spec = tf.TensorSpec([images.height, images.width, images.channels], tf.float32)
        return answers(tf.map_fn(one, encoded, fn_output_signature=spec))

    return [
        Endpoint("classify", classify, [tf.TensorSpec([None, None, None, None], tf.uint8, "images")]),
        Endpoint("classify_bytes", classify_bytes, [tf.TensorSpec([None], tf.string, "image_bytes")]),
    ]


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


def onnx_graphs(model, images):
    """dict of file name -> (function, inputs, outputs) for `onnx_graph.write`.

    `pixel_values` [B, 3, H, W] are normalised, as `ViTImageProcessor` makes them; a model of grey images takes the luma
    of the three, which of equal channels is the grey that they were.
    """

    def function(pixel_values):
        pixels = tf.transpose(pixel_values, [0, 2, 3, 1])
        return [tf.cast(model(luma(pixels) if images.channels == 1 else pixels, training=False), tf.float32)]

    inputs = [Port("pixel_values", ("batch_size", 3, images.height, images.width), tf.float32)]
    return {"model.onnx": (function, inputs, [Port("logits", ("batch_size", len(images.labels)))])}


def write_configs(folder, model, images):
    """Writes config.json and preprocessor_config.json, by which `optimum` and `transformers` know the model.

    The model type is "vit" whatever the model is: clients take labels and the size of images from here and run the
    graph.
    """
    own = model.get_config() if isinstance(model, ImageModel) else {}
    config = {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": images.height if images.height == images.width else [images.height, images.width],
        "num_channels": 3,
        "id2label": {str(i): label for i, label in enumerate(images.labels)},
        "label2id": {label: i for i, label in enumerate(images.labels)},
        **{theirs: own[ours] for theirs, ours in _SIZES.items() if isinstance(own.get(ours), int)},
    }
    for name, content in (("config.json", config), ("preprocessor_config.json", processor_config(images))):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


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


_SIZES = {
    "patch_size": "patch_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
}


def compare_served(model, served, images):
    """Both signatures against Keras on random images of the task's size; returns the `Comparison`."""
    comparison, rng = Comparison(precision_of(model)), np.random.default_rng(0)
    for batch in BATCHES:
        pixels = rng.integers(0, 256, (batch, images.height, images.width, images.channels), dtype=np.uint8)
        want = tf.nn.softmax(tf.cast(model(images.normalised(pixels), training=False), tf.float32))
        encoded = tf.stack([tf.io.encode_png(image) for image in pixels])
        for name, given in (("classify", {"images": pixels}), ("classify_bytes", {"image_bytes": encoded})):
            got = served[name](**{key: tf.constant(value) for key, value in given.items()})
            comparison.numbers(name, got["probabilities"], want)
    return comparison


def compare_onnx(model, graph, images):
    """model.onnx against Keras on random images; returns the `Comparison`.

    Args:
        model: the Keras model. graph: `onnx_check.Graph`. images: the `ImageTask`.
    """
    comparison, rng = Comparison(precision_of(model)), np.random.default_rng(0)
    for batch in BATCHES:
        pixels = rng.integers(0, 256, (batch, images.height, images.width, images.channels), dtype=np.uint8)
        values = images.normalised(pixels)
        given = np.repeat(values.transpose(0, 3, 1, 2), 3 // images.channels, axis=1)
        want = tf.cast(model(values, training=False), tf.float32)
        comparison.numbers("logits", graph({"pixel_values": given})["logits"], want)
    return comparison


def _zeros(images, batch):
    return keras.ops.zeros((batch, images.height, images.width, images.channels))
