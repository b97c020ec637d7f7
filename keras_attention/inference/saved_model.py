"""A SavedModel on disk: its signatures, and what its export says about itself."""

from keras_attention.errors import UsageError, reason_of
from keras_attention.files import read_json
from keras_attention.inference.folders import Found, described, kind_of_signatures
from keras_attention.inference.keras_models import check_weights


class SavedModel:
    """The signatures of one version. A SavedModel is code: load only what you trust.

    Args:
        found: what `find_model` gave.
        kind: the kind of model that is wanted, a key of `KINDS`.

    Attributes:
        path: the folder of the version.
        signatures: dict of name -> function of keyword tensors.
        options: what the export was made with; {} for a SavedModel of another tool.

    Raises:
        UsageError: a file is missing or damaged, or the model is of another kind.
    """

    def __init__(self, found, kind):
        self.path = found.path
        found.require_files("saved_model.pb", "variables/variables.index")
        file = self.path / "assets.extra" / "export.json"
        exported = read_json(file, cure="Export the model again.") if file.exists() else {}
        self.options = exported.get("options", {})
        if not isinstance(self.options, dict):
            raise UsageError(f"{file} is damaged: its options are no JSON object. Export the model again.")
        signatures = exported.get("signatures")
        self._require(kind, signatures if isinstance(signatures, dict) else {})
        import tensorflow as tf

        if kind == "translation":
            try:
                import tensorflow_text  # noqa: F401  registers the operations of the tokenizer
            except ImportError as error:
                raise UsageError(
                    f"{self.path} needs tensorflow-text, which cannot be imported ({error}): reinstall keras-attention."
                ) from None
        try:
            self._model = tf.saved_model.load(str(self.path))  # keeps the variables alive
        except Exception as error:
            # Damage anywhere in the files surfaces as whatever read them: protobuf, the variables' reader, the graph.
            raise UsageError(f"{self.path} cannot be read ({reason_of(error)}). Export the model again.") from error
        self.signatures = dict(self._model.signatures)
        self._require(kind, self.signatures)
        check_weights({v.name: v for s in self.signatures.values() for v in s.variables}, self.path)

    def _require(self, kind, signatures):
        Found(self.path, "saved_model", kind_of_signatures(signatures), {}).require(kind)

    def signature(self, name, kind):
        """The signature of a name; a `UsageError` says that there is none, which a model of that kind has."""
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures)) or "none"
            raise UsageError(
                f"{self.path} does not hold {described(kind)}: it has no signature {name!r} (its signatures: {known})."
            )
        return self.signatures[name]
