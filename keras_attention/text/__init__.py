"""Text in and out: the subword tokenizer that every text model of the package uses."""

from keras_attention.text.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    SentencePieceTokenizer,
)

__all__ = ["BOS_ID", "EOS_ID", "PAD_ID", "UNK_ID", "SentencePieceTokenizer"]
