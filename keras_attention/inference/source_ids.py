"""Texts as a batch of source ids."""

import numpy as np

from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID


def source_ids(tokenizer, texts, max_length):
    """Begin of sentence, subwords, end of sentence, as in training; too long a source loses its last subwords.

    Args:
        tokenizer: `keras_attention.text.SentencePieceTokenizer`.
        texts: list of `str`.
        max_length: the most ids of a row, at least 2.

    Returns:
        int32 `[B, S]`, padded on the right; the same ids as `tokenizer.tokenize(texts, truncate=max_length)`.
    """
    rows = [[BOS_ID, *row[: max_length - 2], EOS_ID] for row in tokenizer.encode(texts)]
    ids = np.full((len(rows), max(map(len, rows), default=0)), PAD_ID, np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return ids
