"""Translation by exports: a SavedModel, and an ONNX folder run by onnxruntime."""

from keras_attention.errors import UsageError
from keras_attention.files import read_json
from keras_attention.generation.arguments import LENGTH_PENALTY, check_penalty
from keras_attention.generation.limits import answer_limits
from keras_attention.inference.folders import ENCODER_DECODER
from keras_attention.inference.keras_models import check_vocabulary
from keras_attention.inference.onnx_decoder import OnnxDecoder
from keras_attention.inference.saved_model import SavedModel
from keras_attention.inference.source_ids import source_ids
from keras_attention.scalars import is_number, is_whole
from keras_attention.text import BOS_ID, EOS_ID, PAD_ID, SentencePieceTokenizer

_LONGEST = 2**31 - 1
_MOST_BEAMS = 1024


class SavedModelBackend:
    """A SavedModel whose `serving_default` takes strings and gives strings, as `export_saved_model` writes it.

    Args:
        found: what `find_model` gave.

    Raises:
        UsageError: a file is missing or damaged, or the signature is another one.
    """

    def __init__(self, found):
        self._saved = SavedModel(found, "translation")
        self._translate = self._saved.signatures.get("serving_default")
        inputs = sorted(self._translate.structured_input_signature[1]) if self._translate else []
        if inputs != ["text"] or "text" not in self._translate.structured_outputs:
            raise UsageError(
                f"{found.path} does not translate text: its signature serving_default takes "
                f"{', '.join(inputs) or 'nothing'}. Export the model with its tokenizer."
            )
        self.max_length, file = self._saved.options.get("max_length"), found.path / "assets.extra" / "tokenizer.model"
        # Earlier exports have no such file: the tokenizer is part of the graph.
        self.tokenizer = SentencePieceTokenizer.load(file) if file.is_file() else None

    def translate(self, texts, *, beams=None, length_penalty=None):
        """The translations of one batch of texts, a list of `str`; the search is the one it was exported with."""
        import tensorflow as tf

        for name, value in (("beams", beams), ("length_penalty", length_penalty)):
            if value is not None and value != self._saved.options.get(name):
                raise UsageError(
                    f"{self._saved.path} was exported with its own search, which {name}={value} cannot change: leave "
                    f"{name} out, or export the model again with {name}={value}."
                )
        answers = self._translate(text=tf.constant(texts, tf.string))["text"]
        return [answer.decode("utf-8", errors="replace") for answer in answers.numpy()]


class OnnxBackend:
    """An ONNX folder with encoder_model.onnx, decoder_model.onnx and decoder_with_past_model.onnx.

    Args:
        found: what `find_model` gave. Beside the graphs there are config.json and tokenizer.model;
            generation_config.json, when there, has the last word on the special ids and the width of the search. The
            length penalty is that of export.json (in clients' configs a number of that name means another thing), 0.6
            where there is none.
        providers: see `OnnxSession`.

    Raises:
        UsageError: a file is missing or damaged, or onnxruntime is not installed.
    """

    def __init__(self, found, providers=None):
        found.require_files(*ENCODER_DECODER, "config.json", "tokenizer.model")
        settings = _Settings(found.path)
        self.max_length = settings.whole_number("max_position_embeddings", None, least=2, most=_LONGEST)
        self._beams = settings.whole_number("num_beams", 1, least=1, most=_MOST_BEAMS)
        self._length_penalty = _exported_penalty(found.path / "export.json")
        self.tokenizer = SentencePieceTokenizer.load(found.path / "tokenizer.model")
        self._decoder = OnnxDecoder.load(
            found.path,
            providers,
            start_id=settings.whole_number("decoder_start_token_id", BOS_ID),
            end_ids=settings.ids("eos_token_id", EOS_ID),
            pad_id=settings.whole_number("pad_token_id", PAD_ID),
        )
        size = self._decoder.first.outputs["logits"][-1]
        if isinstance(size, int):
            check_vocabulary(self.tokenizer, size, found.path)

    def translate(self, texts, *, beams=None, length_penalty=None):
        """The translations of one batch of texts, a list of `str`.

        Args:
            texts: list of `str`.
            beams: width of the search; the exported one by default.
            length_penalty: of the beam search; the exported one by default.
        """
        beams = beams or self._beams
        check_penalty(beams, length_penalty)
        penalty = self._length_penalty if length_penalty is None else length_penalty
        source = source_ids(self.tokenizer, texts, self.max_length)
        limits = answer_limits((source != PAD_ID).sum(axis=1, dtype="int32"), self.max_length)
        best = self._decoder.answer(source, limits, beams, penalty)
        if len(source) and best["overflow"].all():
            raise UsageError("The model's numbers are NaN: its weights are damaged. Train and export it again.")
        rows = zip(best["tokens"], best["lengths"])
        return self.tokenizer.decode([self._text_part(row[:length]) for row, length in rows])

    def _text_part(self, row):
        return row[:-1] if len(row) and row[-1] in self._decoder.end_ids else row


class _Settings:
    """config.json and generation_config.json, the second with the last word."""

    def __init__(self, folder):
        self._sources = []
        for name in ("generation_config.json", "config.json"):
            if (folder / name).is_file():
                self._sources.append((folder / name, read_json(folder / name)))

    def _stored(self, name):
        found = [(path, config[name]) for path, config in self._sources if config.get(name) is not None]
        return found[0] if found else (self._sources[-1][0], None)

    def whole_number(self, name, default, least=0, most=_LONGEST):
        path, value = self._stored(name)
        value = default if value is None else value
        if not is_whole(value, least, most):
            raise UsageError(
                f"{path} must say {name!r}, a whole number from {least} to {most}. Got {value!r}; export the model "
                "again."
            )
        return value

    def ids(self, name, default):
        """A tuple of ids: one, or any of a list."""
        path, value = self._stored(name)
        value = default if value is None else value
        ids = value if isinstance(value, list) and value else [value]
        if not all(is_whole(id, 0, _LONGEST) for id in ids):
            raise UsageError(
                f"{path} must say {name!r}, an id or a list of ids. Got {value!r}; export the model again."
            )
        return tuple(ids)


def _exported_penalty(path):
    options = read_json(path).get("options", {}) if path.is_file() else {}
    penalty = options.get("length_penalty", LENGTH_PENALTY) if isinstance(options, dict) else options
    if not is_number(penalty) or not abs(penalty) < _LONGEST:
        raise UsageError(
            f"{path} must give a finite number as length_penalty. Got {penalty!r}; export the model again."
        )
    return penalty
