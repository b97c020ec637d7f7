"""Classify images with whatever holds a trained model."""

from typing import NamedTuple

import numpy as np

from keras_attention.errors import UsageError, reason_of
from keras_attention.files import read_json
from keras_attention.generation.arguments import whole_number
from keras_attention.images.files import read_image
from keras_attention.images.task import ImageTask
from keras_attention.inference.folders import find_model


class Classification(NamedTuple):
    """The answer for one image.

    Attributes:
        label: the name of the likeliest class.
        probability: its probability.
        probabilities: float32 [N], of every class in the order of the task's labels.
    """

    label: str
    probability: float
    probabilities: np.ndarray


class Classifier:
    """Images in, labels out, by a run folder, a SavedModel or an ONNX folder; all of them answer alike.

    Args:
        backend: has `task`, an `ImageTask`, and `probabilities(pixels)`; `load` chooses one.
        batch_size: the most images that go through the model together.

    Attributes:
        task: the `ImageTask` of the model.

    Example:
        >>> classifier = Classifier.load("runs/digits")
        >>> classifier(["seven.png"])[0].label
        '7'
    """

    def __init__(self, backend, *, batch_size=32):
        self.backend = backend
        self.task = backend.task
        self.batch_size = whole_number("batch_size", batch_size, least=1)

    @classmethod
    def load(cls, path, *, batch_size=32):
        """A classifier from a folder, whose kind is seen from its files.

        Args:
            path: a run folder of `train image-classifier`; a SavedModel exported from one, or the folder of its
                integer versions, of which the highest is taken; or an ONNX folder exported from one.
            batch_size: see the class.

        Raises:
            UsageError: there is no such folder, it is none of these, it holds another kind of model, one of its files
                is missing or damaged, or they do not fit together.
        """
        return cls(_backend(find_model(path, "image-classifier")), batch_size=batch_size)

    def read(self, path):
        """An image file as an array uint8 [h, w, channels] with the channels of the task; see `read_image`."""
        return read_image(path, self.task.channels)

    def __call__(self, images):
        """Classify.

        Args:
            images: list of paths, or of arrays uint8 [h, w, channels] of any sizes.

        Returns:
            list of `Classification`, one for each image.

        Raises:
            UsageError: a file that cannot be read, an array of another dtype or number of channels, or a model whose
                answers are NaN.
        """
        answers = []
        for start in range(0, len(images), self.batch_size):
            batch = [self._checked(image) for image in images[start : start + self.batch_size]]
            for probabilities in self.backend.probabilities(self.task.pixels(batch)):
                if np.isnan(probabilities).any():
                    raise UsageError("The model's answers are NaN: its weights are damaged. Train it again.")
                best = int(np.argmax(probabilities))
                answers.append(Classification(self.task.labels[best], float(probabilities[best]), probabilities))
        return answers

    def _checked(self, image):
        if not isinstance(image, np.ndarray):
            return self.read(image)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != self.task.channels or 0 in image.shape:
            raise UsageError(
                f"An image must be an array uint8 [h, w, {self.task.channels}] or a path. Got {image.dtype.name} "
                f"{list(image.shape)}."
            )
        return image


class RunBackend:
    """The model of a run folder."""

    def __init__(self, found):
        import tensorflow as tf

        from keras_attention.inference.keras_models import load_run

        run = load_run(found)
        self.model, self.task = run.model, run.images
        spec = tf.TensorSpec([None, self.task.height, self.task.width, self.task.channels], tf.float32)
        function = tf.function(lambda images: tf.cast(self.model(images, training=False), tf.float32), autograph=False)
        try:
            self._logits = function.get_concrete_function(spec)
        except Exception as error:
            # A layer that such an image does not fit raises whatever it does.
            raise UsageError(
                f"{found.path} describes images of {self.task.height} x {self.task.width} x {self.task.channels}, "
                f"which its model does not take ({reason_of(error)}). Restore config.json and model.keras of one run."
            ) from error
        _check_labels(self.task, self._logits.structured_outputs.shape, found.path)

    def probabilities(self, pixels):
        """float32 [B, N] of pixels uint8 [B, H, W, C]."""
        import tensorflow as tf

        return _softmax(self._logits(tf.constant(self.task.normalized(pixels))).numpy())


class SavedModelBackend:
    """A SavedModel with the signature `classify`, as `export_saved_model(..., images=task)` writes it."""

    def __init__(self, found):
        from keras_attention.inference.saved_model import SavedModel

        saved = SavedModel(found, "image-classifier")
        self._classify = saved.signature("classify", "image-classifier")
        self._saved = saved  # which keeps the variables alive
        found.require_files("assets.extra/export.json")
        self.task = _exported_task(saved.options, found.path / "assets.extra" / "export.json")
        _check_labels(self.task, self._classify.structured_outputs["probabilities"].shape, found.path)

    def probabilities(self, pixels):
        """float32 [B, N] of pixels uint8 [B, H, W, C]."""
        import tensorflow as tf

        return self._classify(images=tf.constant(pixels))["probabilities"].numpy()


class OnnxBackend:
    """model.onnx with `pixel_values` and `logits`, as `export_onnx(..., images=task)` writes it."""

    def __init__(self, found):
        from keras_attention.inference.onnx_session import OnnxSession

        found.require_files("model.onnx", "export.json")
        path = found.path / "export.json"
        self.task = _exported_task(read_json(path, cure="Export the model again.").get("options"), path)
        self._graph = OnnxSession(found.path / "model.onnx")
        _check_labels(self.task, self._graph.outputs.get("logits", ()), found.path)

    def probabilities(self, pixels):
        """float32 [B, N] of pixels uint8 [B, H, W, C]."""
        values = self.task.normalized(pixels).transpose(0, 3, 1, 2)
        values = np.ascontiguousarray(np.broadcast_to(values, (len(values), 3, *values.shape[2:])))
        return _softmax(self._graph({"pixel_values": values})["logits"])


_BACKENDS = {"run": RunBackend, "saved_model": SavedModelBackend, "onnx": OnnxBackend}


def _backend(found):
    """The backend for what is in a place."""
    found.require("image-classifier")
    if found.layout == "keras":
        raise UsageError(
            f"{found.path} is a model without the names of its classes. Give the run folder or an export, which hold "
            "both."
        )
    return _BACKENDS[found.layout](found)


def _exported_task(options, path):
    if not isinstance(options, dict) or not isinstance(options.get("images"), dict):
        raise UsageError(f"{path} does not describe an image classifier. Export a run of `train image-classifier`.")
    return ImageTask.from_dict(options["images"], path)


def _check_labels(task, shape, path):
    """Raises where a model gives another number of logits than there are labels."""
    shape = tuple(shape)
    if len(shape) != 2 or shape[1] != len(task.labels):
        raise UsageError(
            f"{path} names {len(task.labels)} labels for a model whose output has the shape {shape}: one logit for "
            "each label is expected. Restore the labels of this model."
        )


def _softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
