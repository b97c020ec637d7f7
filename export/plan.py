"""What an export of one model is: its graphs, how they are compared with Keras, and what stands beside them."""

from typing import Any, NamedTuple

from keras_attention.errors import UsageError


class Given(NamedTuple):
    """What the caller of an export gave beside model and place; None is not given. See `export_saved_model`."""

    tokenizer: Any = None
    beams: int | None = None
    length_penalty: float | None = None
    max_length: int | None = None
    input_signature: Any = None
    samples: list | None = None
    images: Any = None


class ExportPlan:
    """One kind of model on its way into a SavedModel or an ONNX folder.

    A subclass is one kind: it gives `takes`, `options` and `otherwise`, and what each of the two writers asks for. The
    writers (`export.saved_model.writer`, `export.onnx_folder.writer`) do all the rest: they write, scan, compare,
    describe and move.

    Args:
        model: a built `keras.Model`.
        given: `Given`.
        onnx: whether the plan is for an ONNX folder.

    Attributes:
        model, given: as given; for an ONNX folder a model of ours is one in float32, as CPUs have no kernels for less.
        otherwise: why options that the kind does not take would have no effect.
        reasons: dict of option -> why it would not, where that is another reason.

    Raises:
        UsageError: an option that the kind does not take, and whatever `prepare` refuses.
    """

    otherwise = ""
    reasons = {}

    def __init__(self, model, given, *, onnx):
        self.model, self.given, self.onnx = model, given, onnx
        self._refuse_other_options()
        self.prepare()

    def _refuse_other_options(self):
        taken, refused = self.options(), {}
        for name, value in self.given._asdict().items():
            if value is not None and name not in taken:
                refused.setdefault(self.reasons.get(name, self.otherwise), []).append(f"{name}=")
        for why, names in refused.items():
            raise UsageError(f"{' and '.join(names)} would have no effect: {why}. Leave it out.")

    # --- the kind -------------------------------------------------------------------------------------------------

    @classmethod
    def takes(cls, model, images, onnx):
        """Whether a model, given with `images` or None, is of this kind."""
        raise NotImplementedError

    def options(self):
        """Names of the fields of `Given` that the kind takes; all others are refused."""
        raise NotImplementedError

    def prepare(self):
        """Checks the model and what was given, before anything is traced."""

    def described(self):
        """The "options" of export.json, for people and for our own loaders."""
        return {}

    # --- SavedModel -----------------------------------------------------------------------------------------------

    def endpoints(self):
        """dict of signature name -> `Endpoint`, "serving_default" included."""
        raise NotImplementedError

    def compare_served(self, served):
        """The `Comparison` of a loaded SavedModel's signatures, dict of name -> function, with Keras."""
        raise NotImplementedError

    def resources(self):
        """Objects whose tables and tokenizers the endpoints use."""
        return [self.model]

    def write_extra_assets(self, folder):
        """Writes files into assets.extra, at which no server looks."""

    # --- ONNX -----------------------------------------------------------------------------------------------------

    def graphs(self):
        """dict of file name -> (function, inputs, outputs), as `onnx_folder.graph.write` takes them."""
        raise NotImplementedError

    def compare_onnx(self, sessions):
        """The `Comparison` of the written graphs, dict of file name -> function of a dict of arrays, with Keras."""
        raise NotImplementedError

    def write_companions(self, folder):
        """Writes the files beside the graphs, by which clients know what they have loaded."""
