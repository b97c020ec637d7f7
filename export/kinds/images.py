"""Classifiers of images as exported graphs: preprocessing inside, labels and probabilities out."""

import json

import keras
import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError, reason_of
from keras_attention.export.boundary import Endpoint
from keras_attention.export.comparing import BATCHES
from keras_attention.export.kinds.image_pixels import colours, decoded, luma, processor_config, sized
from keras_attention.export.onnx_folder.graph import Port
from keras_attention.export.plan import ExportPlan
from keras_attention.export.precision import in_float32, precision_of
from keras_attention.export.report import Comparison
from keras_attention.models.vision.image_model import ImageModel

# What `classify_bytes` decodes: the formats of tf.io.decode_image.
DECODED = ("JPEG", "PNG", "BMP", "GIF (first frame)")
_SIZES = {
    "patch_size": "patch_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
}


class ImageClassifierPlan(ExportPlan):
    """Any `keras.Model` from normalized images [B, H, W, C] to logits [B, N], given with its `ImageTask`."""

    otherwise = "a classifier of images has no search, and what it takes is known"

    @classmethod
    def takes(cls, model, images, onnx):
        return images is not None

    def options(self):
        return ("images",)

    def prepare(self):
        model, images = self.model, self.given.images
        try:
            logits = model(keras.ops.zeros((1, images.height, images.width, images.channels)), training=False)
            shape = tuple(logits.shape)
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"The model does not take images of {images.height} x {images.width} x {images.channels} "
                f"({reason_of(error, 300)}). Give the ImageTask that it was trained for."
            ) from error
        if shape != (1, len(images.labels)):
            raise UsageError(
                f"The model must give one logit for each of the {len(images.labels)} labels. Got an output of shape "
                f"{shape}."
            )
        if self.onnx:
            self.model = in_float32(model)

    def described(self):
        return {"images": self.given.images.as_dict()} | ({} if self.onnx else {"decodes": DECODED})

    def endpoints(self):
        """`classify` (images uint8 [B, h, w, 1 to 4] of any size) and `classify_bytes` (image_bytes string [B]).

        Both give labels string [B], label_ids int32 [B], probabilities float32 [B, N].
        """
        model, images = self.model, self.given.images
        names = tf.constant(images.labels)

        def answers(pixels):
            probabilities = tf.nn.softmax(tf.cast(model(images.normalized(pixels), training=False), tf.float32))
            best = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
            return {"labels": tf.gather(names, best), "label_ids": best, "probabilities": probabilities}

        def classify(pixels):
            return answers(sized(colours(pixels, images.channels), images))

        def classify_bytes(encoded):
            def one(content):
                return sized(colours(decoded(content)[None], images.channels), images)[0]

            spec = tf.TensorSpec([images.height, images.width, images.channels], tf.float32)
            return answers(tf.map_fn(one, encoded, fn_output_signature=spec))

        pixels = Endpoint("classify", classify, [tf.TensorSpec([None, None, None, None], tf.uint8, "images")])
        encoded = Endpoint("classify_bytes", classify_bytes, [tf.TensorSpec([None], tf.string, "image_bytes")])
        return {"classify": pixels, "classify_bytes": encoded, "serving_default": pixels}

    def compare_served(self, served):
        comparison = Comparison(precision_of(self.model))
        for pixels, _, logits in self._samples():
            want = tf.nn.softmax(logits)
            encoded = tf.stack([tf.io.encode_png(image) for image in pixels])
            for name, given in (("classify", {"images": pixels}), ("classify_bytes", {"image_bytes": encoded})):
                got = served[name](**{key: tf.constant(value) for key, value in given.items()})
                comparison.numbers(name, got["probabilities"], want)
        return comparison

    def graphs(self):
        """model.onnx, from `pixel_values` [B, 3, H, W], normalized as `ViTImageProcessor` makes them, to logits.

        A model of grey images takes the luma of the three, which of equal channels is the grey that they were.
        """
        model, images = self.model, self.given.images

        def function(pixel_values):
            pixels = tf.transpose(pixel_values, [0, 2, 3, 1])
            return [tf.cast(model(luma(pixels) if images.channels == 1 else pixels, training=False), tf.float32)]

        inputs = [Port("pixel_values", ("batch_size", 3, images.height, images.width), tf.float32)]
        return {"model.onnx": (function, inputs, [Port("logits", ("batch_size", len(images.labels)))])}

    def compare_onnx(self, sessions):
        comparison = Comparison(precision_of(self.model))
        for _, values, logits in self._samples():
            given = np.repeat(values.transpose(0, 3, 1, 2), 3 // values.shape[-1], axis=1)
            comparison.numbers("logits", sessions["model.onnx"]({"pixel_values": given})["logits"], logits)
        return comparison

    def _samples(self):
        """Yields random pixels uint8 [B, H, W, C], the model's numbers of them, and Keras' logits float32 [B, N]."""
        images, rng = self.given.images, np.random.default_rng(0)
        for batch in BATCHES:
            pixels = rng.integers(0, 256, (batch, images.height, images.width, images.channels), dtype=np.uint8)
            values = images.normalized(pixels)
            yield pixels, values, tf.cast(self.model(values, training=False), tf.float32)

    def write_companions(self, folder):
        """Writes config.json and preprocessor_config.json, by which `optimum` and `transformers` know the model.

        The model type is "vit" whatever the model is: clients take labels and the size of images from here and run the
        graph.
        """
        model, images = self.model, self.given.images
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
