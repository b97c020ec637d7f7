"""Classify images with whatever holds a trained model."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.generation.arguments import whole_number
from keras_attention.images.files import read_image
from keras_attention.images.task import ImageTask
from keras_attention.inference.folder_files import read_json_object, require_files, unreadable


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
            path: a run folder of `keras-attention train vit`; a SavedModel exported from one, or the folder of its
                integer versions, of which the highest is taken; or an ONNX folder exported from one.
            batch_size: see the class.

        Raises:
            UsageError: there is no such folder, it is none of these, or one of its files is missing or damaged.
        """
        return cls(_backend_class(Path(path))(Path(path)), batch_size=batch_size)

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
            UsageError: a file that cannot be read, or an array of another dtype or number of channels.
        """
        answers = []
        for start in range(0, len(images), self.batch_size):
            batch = [self._checked(image) for image in images[start : start + self.batch_size]]
            for probabilities in self.backend.probabilities(self.task.pixels(batch)):
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

    files = ("config.json", "model.keras")

    def __init__(self, folder):
        import keras

        import keras_attention.models  # noqa: F401  registers the classes that the file names

        require_files(folder, self.files, "a run folder", "let the training finish (--resume), or restore the file")
        config = read_json_object(folder / "config.json")
        self.task = ImageTask.from_dict(config.get("images"), folder / "config.json")
        try:
            self.model = keras.saving.load_model(folder / "model.keras", compile=False)
        except Exception as error:
            # Keras lets the errors of zip, HDF5 and JSON through, and its own: all mean the same here.
            raise unreadable(folder / "model.keras", error) from error

    def probabilities(self, pixels):
        """float32 [B, N] of pixels uint8 [B, H, W, C]."""
        return _softmax(np.asarray(self.model(self.task.normalised(pixels), training=False), np.float32))


class SavedModelBackend:
    """A SavedModel with the signature `classify`, as `export_saved_model(..., images=task)` writes it."""

    files = ("saved_model.pb", "variables/variables.index", "assets.extra/export.json")

    def __init__(self, folder):
        import tensorflow as tf

        from keras_attention.inference.saved_model_backend import newest_version

        folder = newest_version(folder) or folder
        require_files(folder, self.files, "a SavedModel")
        self.task = _exported_task(folder / "assets.extra" / "export.json")
        try:
            self._model = tf.saved_model.load(str(folder))
            self._classify = self._model.signatures["classify"]
        except Exception as error:
            # Damage anywhere in the files surfaces as whatever read them: protobuf, the variables' reader, the graph.
            raise unreadable(folder, error) from error

    def probabilities(self, pixels):
        """float32 [B, N] of pixels uint8 [B, H, W, C]."""
        import tensorflow as tf

        return self._classify(images=tf.constant(pixels))["probabilities"].numpy()


class OnnxBackend:
    """model.onnx with `pixel_values` and `logits`, as `export_onnx(..., images=task)` writes it."""

    files = ("model.onnx", "export.json")

    def __init__(self, folder):
        require_files(folder, self.files, "an ONNX folder")
        self.task = _exported_task(folder / "export.json")
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                f"An ONNX folder needs onnxruntime, which cannot be imported ({error}): "
                "pip install 'keras-attention[onnx]'."
            ) from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: they are raised as well
        wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
        providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
        try:
            self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=providers)
        except Exception as error:
            # onnxruntime has a class for each kind of damage and no common one.
            raise unreadable(folder / "model.onnx", error) from error

    def probabilities(self, pixels):
        """float32 [B, N] of pixels uint8 [B, H, W, C]."""
        values = self.task.normalised(pixels).transpose(0, 3, 1, 2)
        values = np.ascontiguousarray(np.broadcast_to(values, (len(values), 3, *values.shape[2:])))
        return _softmax(self._session.run(["logits"], {"pixel_values": values})[0])


def _exported_task(path):
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))["options"]["images"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path} does not describe a classifier of images. Export a run of `keras-attention train vit`."
        ) from None
    return ImageTask.from_dict(stored, path)


def _softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _backend_class(folder):
    """The backend for a folder, by the names in it."""
    if not folder.exists():
        raise UsageError(f"{folder} does not exist. Give a run folder, a SavedModel or an ONNX folder.")
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file. Give the folder: a run folder, a SavedModel or an ONNX folder.")
    names = {entry.name for entry in folder.iterdir()}
    if names & {"saved_model.pb", "variables"} or any(name.isdecimal() for name in names):
        return SavedModelBackend
    if "model.onnx" in names:
        return OnnxBackend
    if names & {"config.json", "model.keras"}:
        return RunBackend
    raise UsageError(
        f"{folder} holds no classifier of images. Expected a run folder ({', '.join(RunBackend.files)}), a SavedModel "
        f"(saved_model.pb, or integer versions of it) or an ONNX folder ({', '.join(OnnxBackend.files)})."
    )
