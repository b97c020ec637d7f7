"""Learning a subword vocabulary from a corpus."""

import io
import re
import warnings

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_attention.text.well_formed import well_formed

MODEL_TYPES = ("unigram", "bpe")
NORMALIZATIONS = ("nmt_nfkc", "nmt_nfkc_cf")

# SentencePiece leaves out sentences of more than 4,192 bytes; a character has at most 4.
_LONGEST_PIECE = 1_000
# Fixed, because the order in which the threads' sums are added decides the last digits of the scores.
_THREADS = 4


def learn_model(
    sentences,
    vocab_size,
    *,
    model_type="unigram",
    normalization="nmt_nfkc",
    byte_fallback=False,
    character_coverage=None,
    max_sentences=500_000,
    seed=0,
):
    """Trains a SentencePiece model. The same sentences in the same order and the same seed give the same bytes.

    Digits are always single subwords: numbers of any length are then spelt with ten ids, which a model can copy.

    Args:
        sentences: Iterable of `str`; read once. White space of any kind (tabs and line ends too) counts as one space.
        vocab_size: Number of ids, the four special ones included. When the corpus is too small for it, the largest
            possible number is taken and a warning says which.
        model_type: "unigram" (the likeliest cut under a model of independent subwords) or "bpe" (byte-pair merges).
        normalization: SentencePiece's rule for equal-looking text, stored with the model. "nmt_nfkc": Unicode NFKC, all
            white space to single spaces; "nmt_nfkc_cf": case-folded too (the model then reads and writes no capitals).
        byte_fallback: Spell unknown characters as UTF-8 bytes (256 more ids) in place of one unknown id.
        character_coverage: Share of the corpus' characters that must be known, 0.98 to 1; the rarest beyond it become
            unknown. None: 1, or 0.9995 for a corpus (Chinese, Japanese, Korean) whose different characters would take
            more than half of the vocabulary.
        max_sentences: A larger corpus is sampled down to so many, each sentence with the same chance, in one pass and
            with memory for the sample only.
        seed: Decides the sample; nothing else is random.

    Returns:
        The serialised model, `bytes`.

    Raises:
        UsageError: No text at all, an unknown option, or a vocabulary too small for the characters of the corpus.
    """
    _check_options(vocab_size, model_type, normalization, character_coverage, max_sentences)
    lines = _lines(_sample(sentences, max_sentences, seed))
    if normalization.endswith("_cf"):
        lines = [line.casefold() for line in lines]
    if not lines:
        raise UsageError("no text to train a tokenizer on: every sentence is empty")
    if character_coverage is None:
        different = len(set().union(*lines))
        character_coverage = 1.0 if different <= vocab_size // 2 else 0.9995
    size = vocab_size
    while True:
        try:
            model = _train(lines, size, model_type, normalization, byte_fallback, character_coverage)
            break
        except RuntimeError as error:
            size = _smaller_size(str(error), size)
    if size != vocab_size:
        warnings.warn(
            f"the corpus is too small for a vocabulary of {vocab_size}: the tokenizer has {size} entries", stacklevel=3
        )
    return model


def _check_options(vocab_size, model_type, normalization, character_coverage, max_sentences):
    if model_type not in MODEL_TYPES:
        raise UsageError(f"unknown tokenizer model type {model_type!r}: use one of {', '.join(MODEL_TYPES)}")
    if normalization not in NORMALIZATIONS:
        raise UsageError(f"unknown normalization {normalization!r}: use one of {', '.join(NORMALIZATIONS)}")
    for name, value in (("vocab_size", vocab_size), ("max_sentences", max_sentences)):
        if int(value) != value or value < 1:
            raise UsageError(f"{name} must be a positive whole number. Got {value}.")
    if character_coverage is not None and not 0.98 <= character_coverage <= 1:
        raise UsageError(f"character_coverage must be from 0.98 to 1. Got {character_coverage}.")


def _sample(sentences, count, seed):
    """At most `count` sentences, each equally likely (reservoir sampling: Vitter 1985, algorithm R)."""
    rng = np.random.default_rng(seed)
    kept = []
    for index, sentence in enumerate(sentences):
        if index < count:
            kept.append(sentence)
        elif (place := rng.integers(index + 1)) < count:
            kept[place] = sentence
    return kept


def _lines(sentences):
    """Single lines that the trainer takes whole: no tabs, line ends or NUL, none too long, none empty."""
    lines = []
    for sentence in sentences:
        text = " ".join(well_formed(sentence).replace("\0", " ").split())
        lines += [text[start : start + _LONGEST_PIECE] for start in range(0, len(text), _LONGEST_PIECE)]
    return lines


def _train(lines, vocab_size, model_type, normalization, byte_fallback, character_coverage):
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocab_size,
        model_type=model_type,
        normalization_rule_name=normalization,
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
        split_digits=True,
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        num_threads=_THREADS,
        minloglevel=3,
    )
    return model.getvalue()


def _smaller_size(message, size):
    """The vocabulary size that the trainer's complaint allows; raises when it is about something else."""
    too_high = re.search(r"Vocabulary size too high .*<= (\d+)", message)
    if too_high and int(too_high[1]) < size:
        return int(too_high[1])
    too_low = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_low:
        raise UsageError(
            f"vocab_size={size} is too small: the characters of the corpus alone need {too_low[1]}; use more than "
            f"that, or a lower character_coverage"
        )
    raise UsageError(f"the tokenizer cannot be trained on this corpus: {message}")
