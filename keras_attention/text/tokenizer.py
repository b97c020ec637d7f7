"""Subword tokenizer: one SentencePiece model, used from Python and inside TensorFlow graphs."""

import os
from pathlib import Path

from keras_attention.errors import UsageError
from keras_attention.text.learning import learn_model
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_attention.text.well_formed import well_formed


class SentencePieceTokenizer:
    """Cuts text into subword ids and puts ids together to text again.

    Every tokenizer of the package has the same four special ids: padding 0, unknown 1, begin of sentence 2, end of
    sentence 3. The same model serves two doors that agree id for id: `encode` and `decode` take Python lists (no
    TensorFlow involved: for preparing a corpus), `tokenize` and `detokenize` take tensors and run inside a graph (for
    models that are served with strings). The bytes of the model are part of the graph: a SavedModel needs no file
    beside it.

    The in-graph methods run on the CPU and need tensorflow-text, which is imported at their first use; a process that
    loads such a SavedModel must `import tensorflow_text` first. String operations cannot be compiled by XLA: keep
    them outside of `jit_compile=True` functions.

    Args:
        model: The serialised SentencePiece model (the content of a `tokenizer.model` file). To make one, see `train`;
            to read one from a file, see `load`.
        origin: Where the bytes came from, for error messages.

    Raises:
        UsageError: The bytes are no SentencePiece model, are cut short, or have other special ids.

    Example:
        >>> tokenizer = SentencePieceTokenizer.train(["a cat", "a hat", "the cat sat"] * 10, vocab_size=20)
        >>> ids = tokenizer.tokenize(["the hat"])          # int32 [1, S], begins with 2 and ends with 3
        >>> tokenizer.detokenize(ids).numpy()
        array([b'the hat'], dtype=object)

    Reference: Kudo and Richardson 2018, "SentencePiece: A simple and language independent subword tokenizer and
    detokenizer for neural text processing", https://arxiv.org/abs/1808.06226; unigram models: Kudo 2018,
    https://arxiv.org/abs/1804.10959.
    """

    def __init__(self, model, *, origin="the tokenizer model"):
        self.model = bytes(model)
        self._processor, normalization = _open_model(self.model, origin)
        self._folds_case = normalization.endswith("_cf")

    @classmethod
    def train(cls, sentences, vocab_size=8000, **options):
        """Learns the subwords of a corpus; see `keras_attention.text.learning.learn_model` for the options.

        Args:
            sentences: Iterable of `str`, one sentence each; for a joint model of two languages, both sides.
            vocab_size: Number of ids, special ids included. When the corpus is too small for it, the largest possible
                number is taken and a warning says which.
            **options: `model_type`, `normalization`, `byte_fallback`, `character_coverage`, `max_sentences`, `seed`.

        Returns:
            A `SentencePieceTokenizer`.
        """
        return cls(learn_model(sentences, vocab_size, **options))

    @classmethod
    def load(cls, path):
        """Reads a tokenizer that `save` wrote.

        Raises:
            UsageError: There is no such file, or it is no complete tokenizer of this package.
        """
        try:
            model = Path(path).read_bytes()
        except FileNotFoundError:
            raise UsageError(f"tokenizer file {path} does not exist: give the path of a tokenizer.model") from None
        except OSError as error:
            raise UsageError(f"tokenizer file {path} cannot be read: {error.strerror or error}") from None
        return cls(model, origin=f"tokenizer file {path}")

    def save(self, path):
        """Writes the model to `path`; an interruption leaves the old file or the new one, never a part."""
        path = Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.model)
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise UsageError(f"tokenizer file {path} cannot be written: {error.strerror or error}") from None

    def __reduce__(self):
        """Pickles and copies by the model's bytes: the processor belongs to one process."""
        return type(self), (self.model,)

    @property
    def vocab_size(self):
        """Number of ids; every id is in `range(vocab_size)`."""
        return self._processor.vocab_size()

    def piece(self, id):
        """The subword of an id, as a `str` (a space inside is written U+2581); for labels of plots and reports."""
        return self._processor.id_to_piece(id if 0 <= id < self.vocab_size else UNK_ID)

    def encode(self, texts):
        """Cuts texts in Python.

        Args:
            texts: List of `str`.

        Returns:
            A list of lists of ids, one per text, without begin and end of sentence; `[]` for an empty text.
        """
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"encode takes a list of texts. Got {type(texts).__name__}; write encode([text])[0].")
        texts = [well_formed(text) for text in texts]
        return self._processor.encode([text.casefold() for text in texts] if self._folds_case else texts)

    def decode(self, ids):
        """Puts texts together in Python.

        Args:
            ids: List of lists of ids (or of integer arrays). A row ends at its first end of sentence; padding and
                begin of sentence are left out; an id outside of the vocabulary counts as unknown.

        Returns:
            A list of `str`, one per row.
        """
        return self._processor.decode([self._readable(row) for row in ids])

    def _readable(self, row):
        kept = []
        for id in map(int, row):
            if id == EOS_ID:
                break
            if id not in (PAD_ID, BOS_ID):
                kept.append(id if 0 <= id < self.vocab_size else UNK_ID)
        return kept

    def tokenize(self, texts, *, add_bos=True, add_eos=True, truncate=None):
        """Cuts texts inside a graph.

        Args:
            texts: String tensor [B], or a scalar; or what converts to one. UTF-8.
            add_bos: Begin every row with id 2.
            add_eos: End every row with id 3. With it no row is empty, so none is masked altogether.
            truncate: The most ids a row may have, begin and end of sentence included; longer rows lose their last
                subwords and keep their end of sentence. None: no limit.

        Returns:
            int32 ids [B, S], padded with 0 on the right to the longest row; [S] for a scalar.
        """
        import tensorflow as tf

        texts = tf.convert_to_tensor(texts, tf.string)
        if texts.shape.rank not in (0, 1):
            raise ValueError(f"texts must be a scalar or of shape [B]. Got shape {texts.shape}.")
        if truncate is not None and truncate <= add_bos + add_eos:
            raise ValueError(
                f"truncate must leave room for a subword beside the special ids. Got truncate={truncate}; "
                f"use {add_bos + add_eos + 1} or more."
            )
        if texts.shape.rank == 0:
            return self.tokenize(texts[tf.newaxis], add_bos=add_bos, add_eos=add_eos, truncate=truncate)[0]
        operations = self._operations()
        if self._folds_case:
            # SentencePiece's own rule folds letter by letter and leaves the sharp s and the Greek iota subscript.
            import tensorflow_text

            texts = tensorflow_text.case_fold_utf8(texts)
        ids = operations.tokenize(texts)  # ragged [B, S]
        if truncate is not None:
            ids = ids[:, : truncate - add_bos - add_eos]
        # Dense from here on: joining ragged rows puts an assertion into the graph, which a server should not hold.
        ends = tf.cast(ids.row_lengths(), tf.int32)[:, tf.newaxis] + int(add_bos)  # where the end of sentence goes
        column = tf.ones_like(ends)
        ids = tf.concat([BOS_ID * column] * add_bos + [ids.to_tensor(PAD_ID)] + [PAD_ID * column] * add_eos, axis=1)
        return tf.where(tf.range(tf.shape(ids)[1]) == ends, EOS_ID, ids) if add_eos else ids

    def detokenize(self, ids):
        """Puts texts together inside a graph.

        Args:
            ids: Integer tensor [B, N], or [N]. A row ends at its first end of sentence (3); padding and begin of
                sentence are left out; an id outside of the vocabulary counts as unknown.

        Returns:
            String tensor [B]; a scalar for [N].
        """
        import tensorflow as tf

        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer:
            raise TypeError(f"ids must be integers. Got dtype {ids.dtype.name}; cast them first.")
        if ids.shape.rank not in (1, 2):
            raise ValueError(f"ids must have shape [B, N] or [N]. Got shape {ids.shape}.")
        if ids.shape.rank == 1:
            return self.detokenize(ids[tf.newaxis])[0]
        # The operation fails on an unknown id, and one bad row would fail the whole batch.
        known = (ids >= 0) & (ids < self.vocab_size)
        ids = tf.cast(tf.where(known, ids, tf.cast(UNK_ID, ids.dtype)), tf.int32)
        before_end = tf.cumsum(tf.cast(ids == EOS_ID, tf.int32), axis=1) == 0
        kept = before_end & (ids != PAD_ID) & (ids != BOS_ID)
        return self._operations().detokenize(tf.ragged.boolean_mask(ids, kept))

    def _operations(self):
        """tensorflow-text's tokenizer, made anew for the eager call or the graph at hand.

        Its model lives in a TensorFlow kernel, and `keras.utils.set_random_seed` (tf.random.set_seed) and
        `keras.utils.clear_session` throw kernels away: a handle kept from before would point to nothing. Made where it
        is used, it comes back with its kernel, and eager calls share one kernel as long as it lives.
        """
        import tensorflow as tf

        try:
            import tensorflow_text
        except ImportError as error:
            raise UsageError(
                f"strings inside a graph need tensorflow-text, which cannot be imported ({error}): "
                "pip install keras-attention brings it; reinstall it beside the same version of TensorFlow"
            ) from None
        return tensorflow_text.SentencepieceTokenizer(self.model, out_type=tf.int32)


def _open_model(model, origin):
    """The `SentencePieceProcessor` and its normalization's name, after the checks that the library leaves out."""
    from google.protobuf.message import DecodeError
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    if not model:
        raise UsageError(f"{origin} is empty: give a tokenizer.model as SentencePieceTokenizer.save writes it")
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(model)
        # A file cut between two fields still parses; the fields at its end are then missing.
        if not proto.HasField("trainer_spec") or not proto.HasField("normalizer_spec"):
            raise DecodeError("cut short")
        processor = SentencePieceProcessor(model_proto=model)
    except (DecodeError, RuntimeError):
        raise UsageError(
            f"{origin} is not a complete SentencePiece model: it is damaged or another kind of file; restore it, or "
            "train a new tokenizer"
        ) from None
    ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise UsageError(
            f"{origin} has the ids pad={ids[0]}, unk={ids[1]}, bos={ids[2]}, eos={ids[3]}; expected pad=0, unk=1, "
            "bos=2, eos=3: train it with SentencePieceTokenizer.train"
        )
    return processor, proto.normalizer_spec.name
