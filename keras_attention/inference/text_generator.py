"""Go on with a text by whatever holds a trained language model on bytes."""

import numpy as np

from keras_attention.errors import UsageError, reason_of
from keras_attention.files import read_json
from keras_attention.generation.arguments import whole_number
from keras_attention.generation.array_beam import array_beam_search
from keras_attention.inference.folders import DECODER, find_model
from keras_attention.inference.keras_models import byte_tokenizer, check_vocabulary, load_keras_model, load_run
from keras_attention.text import PAD_ID, ByteTokenizer

# What the names of a state's tensors begin with in an ONNX graph, on their way in and out.
PAST, PRESENT = "past.", "present."


class TextGenerator:
    """A text in, its most probable continuation out, by a run folder, a SavedModel or an ONNX folder.

    All of them answer alike, as far as the decoding state of an export reaches, whose size is fixed.

    Args:
        backend: has `continuation(ids, max_new_tokens)`; `load` chooses one.

    Example:
        >>> generator = TextGenerator.load("runs/book")
        >>> generator("It was the ", max_new_tokens=20)
        b'best of times, it wa'
    """

    def __init__(self, backend):
        self.backend = backend
        self.tokenizer = ByteTokenizer()

    @classmethod
    def load(cls, path):
        """A generator from a folder, whose kind is seen from its files.

        Args:
            path: a run folder of `keras-attention train lm`, or its model.keras; a SavedModel exported from one, or the
                folder of its integer versions, of which the highest is taken; or an ONNX folder exported from one.

        Raises:
            UsageError: nothing there, it holds another kind of model, or one of its files is missing or damaged.
        """
        return cls(_backend(find_model(path, "language")))

    def __call__(self, prompt, *, max_new_tokens=200):
        """Go on with a text.

        Args:
            prompt: `str` or `bytes`; an empty one begins a text.
            max_new_tokens: bytes to generate.

        Returns:
            `bytes`, the new ones alone: they may end in the middle of a letter.

        Raises:
            TypeError: the prompt is no text.
            ValueError: max_new_tokens is no whole number.
            UsageError: prompt and answer are longer than the model's positions or the export's state, or the model's
                numbers are NaN.
        """
        if not isinstance(prompt, (str, bytes)):
            raise TypeError(f"prompt must be str or bytes. Got {type(prompt).__name__}.")
        max_new_tokens = whole_number("max_new_tokens", max_new_tokens, least=0)
        if isinstance(prompt, str):
            # Bytes that are no UTF-8 come from a command line as lone surrogates.
            prompt = prompt.encode("utf-8", "surrogateescape")
        ids = self.tokenizer.encode_batch([prompt])[0]
        return self.tokenizer.decode(self.backend.continuation(ids, max_new_tokens))


_NOT_NUMBERS = "The model's numbers are NaN: its weights are damaged. Train it again with a lower learning rate."


class ModelBackend:
    """A Keras model such as `keras_attention.models.DecoderLM`."""

    def __init__(self, model):
        self.model = model

    def continuation(self, ids, max_new_tokens):
        """int32 [N] after the ids [T] of a prompt."""
        from keras_attention.generation.continuation import continue_greedily

        try:
            result = continue_greedily(
                self.model, ids[None], max_new_tokens=max_new_tokens, forbidden=range(ByteTokenizer.offset)
            )
        except ValueError as error:  # learned positions have an end
            raise UsageError(reason_of(error, 500)) from error
        if int(result.overflow[0]):
            raise UsageError(_NOT_NUMBERS)
        return result.tokens[0].numpy()


class ExportBackend:
    """`prefill` and `decode_step` of an export.

    Args:
        prefill, step: functions of keyword arrays that return a dict of arrays: "logits", and the state's tensors under
            the names by which `step` takes them.
        path: of the export, for messages.
    """

    def __init__(self, prefill, step, path):
        self.prefill, self.step, self.path = prefill, step, path

    def continuation(self, ids, max_new_tokens):
        """int32 [N] after the ids [T] of a prompt."""
        # The last id starts the search, which reads it in its first step.
        past = self.prefill(input_ids=ids[None], input_lengths=np.array([len(ids) - 1], np.int32))
        past.pop("logits")

        def step(tokens, past):
            past = self.step(token=tokens, **past)
            logits = past.pop("logits")
            if np.any(past.get("overflow", 0)):
                raise UsageError(
                    f"Prompt and answer are longer than the decoding state of {self.path}. Ask for fewer bytes, or "
                    "export the model with a larger --max-length."
                )
            if np.isnan(logits).any():
                raise UsageError(_NOT_NUMBERS)
            return logits, past

        result = array_beam_search(
            step,
            lambda past, parents: past,  # of one hypothesis
            past,
            ids[-1:],
            beams=1,
            end_id=-1,
            pad_id=PAD_ID,
            max_new_tokens=[max_new_tokens],
            forbidden=range(ByteTokenizer.offset),
        )
        return result.tokens[0, 0]


def _backend(found):
    found.require("language")
    if found.layout == "run":
        return ModelBackend(load_run(found).model)
    if found.layout == "keras":
        model = load_keras_model(found.path)
        _check_bytes({}, getattr(model, "vocab_size", None), found.path, found.path)
        return ModelBackend(model)
    return (_saved_model if found.layout == "saved_model" else _onnx)(found)


def _saved_model(found):
    from keras_attention.inference.saved_model import SavedModel

    saved = SavedModel(found, "language")
    prefill, step = (saved.signature(name, "language") for name in ("prefill", "decode_step"))
    size = prefill.structured_outputs["logits"].shape[-1]
    _check_bytes(saved.options, size, found.path, found.path / "assets.extra" / "export.json")

    def arrays(signature):
        def call(**given):
            import tensorflow as tf

            outputs = signature(**{name: tf.constant(x) for name, x in given.items()})
            return {name: x.numpy() for name, x in outputs.items()}

        return call

    return ExportBackend(arrays(prefill), arrays(step), found.path)


def _onnx(found):
    from keras_attention.inference.onnx_session import OnnxSession

    found.require_files(*DECODER)
    prefill, step = (OnnxSession(found.path / name) for name in DECODER)
    path = found.path / "export.json"
    options = read_json(path, cure="Export the model again.").get("options") if path.is_file() else {}
    _check_bytes(options, prefill.outputs.get("logits", [None])[-1], found.path, path)

    def by_keyword(session):
        def call(**given):
            outputs = session({**given, **{PAST + name: x for name, x in given.items()}})
            return {name.removeprefix(PRESENT): x for name, x in outputs.items()}

        return call

    return ExportBackend(by_keyword(prefill), by_keyword(step), found.path)


def _check_bytes(options, size, path, described_in):
    """Raises where a language model is not one on bytes; exports that do not say it are known by their vocabulary."""
    if isinstance(options, dict) and "tokenizer" not in options:
        if size != ByteTokenizer.vocab_size:
            raise UsageError(
                f"{path} holds a language model of {size} ids, not one on bytes ({ByteTokenizer.vocab_size} ids), and "
                "no tokenizer: its prompts must be ids. Use generation.continue_greedily in Python."
            )
        return
    tokenizer = byte_tokenizer(options.get("tokenizer") if isinstance(options, dict) else options, described_in)
    check_vocabulary(tokenizer, size, path)
