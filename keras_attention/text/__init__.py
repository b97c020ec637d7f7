"""Text in and out: the subword tokenizer of translation models, and bytes for language models."""

from keras_attention.text.byte_tokenizer import ByteTokenizer
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_attention.text.tokenizer import SentencePieceTokenizer

__all__ = ["BOS_ID", "EOS_ID", "PAD_ID", "UNK_ID", "ByteTokenizer", "SentencePieceTokenizer"]
