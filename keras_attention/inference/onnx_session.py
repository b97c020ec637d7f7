"""One ONNX file in ONNX Runtime."""

import numpy as np

from keras_attention.errors import UsageError, reason_of

_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class OnnxSession:
    """Arrays by name in, arrays by name out.

    Args:
        path: the .onnx file.
        providers: execution providers of onnxruntime, most wanted first; CUDA where the installed one has it, and the
            CPU, by default.

    Attributes:
        outputs: dict of name -> shape, a list of sizes and of names for open axes.

    Raises:
        UsageError: onnxruntime is not installed, or does not load the file.
    """

    def __init__(self, path, providers=None):
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                f"An ONNX folder needs onnxruntime, which cannot be imported ({error}): "
                "pip install 'keras-attention[onnx]'."
            ) from None
        if providers is None:
            wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
            providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: they are raised as well
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:
            # onnxruntime has a class for each kind of damage and no common one.
            raise UsageError(f"{path} cannot be read ({reason_of(error)}). Export the model again.") from error
        self._types = {value.name: value.type for value in self._session.get_inputs()}
        self.outputs = {value.name: value.shape for value in self._session.get_outputs()}
        self._path = path

    def __call__(self, given):
        """Runs on those of the given arrays that the graph takes; integers in the width that it declares."""
        feeds = {}
        for name, kind in self._types.items():
            if name not in given:
                raise UsageError(f"{self._path} takes an input {name!r} that is not known. Export the model again.")
            feeds[name] = np.asarray(given[name])
            feeds[name] = feeds[name].astype(_INTEGERS.get(kind, feeds[name].dtype), copy=False)
        try:
            outputs = self._session.run(list(self.outputs), feeds)
        except Exception as error:
            raise UsageError(f"{self._path} cannot be run ({reason_of(error)}). Export the model again.") from error
        return dict(zip(self.outputs, outputs, strict=True))
