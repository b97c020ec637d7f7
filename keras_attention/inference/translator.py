"""Translate texts with whatever holds a trained model."""

from typing import NamedTuple

from keras_attention.errors import UsageError
from keras_attention.generation.arguments import whole_number
from keras_attention.inference.folders import find_model
from keras_attention.text.well_formed import well_formed


class Truncation(NamedTuple):
    """A text that was longer than the model reads.

    Attributes:
        index: its place in the list of texts.
        tokens: how many it has, begin and end of sentence included.
        kept: how many of them were read.
    """

    index: int
    tokens: int
    kept: int


class Translator:
    """Texts in, translations out, by a run folder, a SavedModel or an ONNX folder; all of them answer alike.

    An answer depends on its own text only: texts are sorted by length and translated in batches of bounded size,
    where padding is masked and each row has its own limit (`keras_attention.generation.limits`). Texts with nothing
    but white space have an empty translation.

    Args:
        backend: has `translate(texts, *, beams, length_penalty)` for one batch; `load` chooses one.
        batch_size: the most texts that are translated together; memory grows with it, and speed up to a point.

    Attributes:
        backend: as given; that of a run folder has `model` and `tokenizer`.
        truncated: list of `Truncation`, the texts of the last call that lost their end because they are longer than the
            model's `max_length`. Always empty for a SavedModel of an earlier version, which cannot be asked.

    Example:
        >>> translator = Translator.load("runs/demo/run")
        >>> translator(["March 3, 2031", "seven"], beams=4)
        ['3. März 2031', 'sieben']
    """

    def __init__(self, backend, *, batch_size=32):
        self.backend = backend
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.truncated = []

    @classmethod
    def load(cls, path, *, batch_size=32):
        """A translator from a folder, whose kind is seen from its files.

        Args:
            path: a run folder (config.json, model.keras, tokenizer.model); a SavedModel, or the folder of its integer
                versions, of which the highest is taken; or an ONNX folder (encoder_model.onnx and its companions,
                config.json, tokenizer.model).
            batch_size: see the class.

        Raises:
            UsageError: there is no such folder, it is none of these, it holds another kind of model, or one of its
                files is missing or damaged.
        """
        return cls(_backend(find_model(path, "translation")), batch_size=batch_size)

    @property
    def model(self):
        """The Keras model of a run folder; exports have none (AttributeError)."""
        return self.backend.model

    def __call__(self, texts, *, beams=None, length_penalty=None):
        """Translate.

        Args:
            texts: list of `str`, in any number and of any length; a text that is longer than the model's `max_length`
                loses its end, and is noted in `truncated`.
            beams: width of the search. By default 1 (greedy) for a run folder, and the exported one for an export; that
                of a SavedModel cannot be changed.
            length_penalty: of a beam search, see `keras_attention.generation.beam_search`; 0.6 by default, and the
                exported one for an export.

        Returns:
            list of `str`, in the order of the texts.

        Raises:
            TypeError: texts is a single `str`, or holds something else.
            ValueError: beams is no whole number of at least 1.
            UsageError: a SavedModel is asked for another search than the one it was exported with; a run folder gets a
                length_penalty for a greedy search, which has none.
        """
        texts = _list_of_texts(texts)
        if beams is not None:
            beams = whole_number("beams", beams, least=1)
        self.truncated = []
        translations = [""] * len(texts)
        waiting = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(texts[i]))
        for begin in range(0, len(waiting), self.batch_size):
            batch = waiting[begin : begin + self.batch_size]
            self._note_truncated(batch, [texts[i] for i in batch])
            answers = self.backend.translate([texts[i] for i in batch], beams=beams, length_penalty=length_penalty)
            for i, answer in zip(batch, answers, strict=True):
                translations[i] = answer
        self.truncated.sort()
        return translations

    def _note_truncated(self, places, texts):
        tokenizer, most = getattr(self.backend, "tokenizer", None), getattr(self.backend, "max_length", None)
        if tokenizer is None or most is None:
            return
        for place, ids in zip(places, tokenizer.encode(texts), strict=True):
            if len(ids) + 2 > most:  # begin and end of sentence
                self.truncated.append(Truncation(place, len(ids) + 2, most))


def _list_of_texts(texts):
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"texts must be a list of str. Got one {type(texts).__name__}; write translator([text])[0].")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be a list of str. Got a {type(text).__name__} in it: {text!r}.")
    return [well_formed(text) for text in texts]


def _backend(found):
    """The backend for a place. Imported only here: each brings a runtime of its own."""
    found.require("translation")
    if found.layout == "keras":
        raise UsageError(
            f"{found.path} is a model without its tokenizer. Give the run folder or an export, which hold both."
        )
    if found.layout == "run":
        from keras_attention.inference.keras_models import load_run
        from keras_attention.inference.model_backend import ModelBackend

        run = load_run(found)
        return ModelBackend(run.model, run.tokenizer)
    from keras_attention.inference.exported_translators import OnnxBackend, SavedModelBackend

    return (SavedModelBackend if found.layout == "saved_model" else OnnxBackend)(found)
