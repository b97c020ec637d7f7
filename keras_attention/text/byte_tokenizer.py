"""Bytes as tokens: any file, any language, nothing to learn."""

import numpy as np

from keras_attention.text.tokenizer import BOS_ID, PAD_ID


class ByteTokenizer:
    """Ids of bytes: a byte and 4, after the four special ids that all tokenizers of the package share.

    Attributes:
        vocab_size: 260.

    Example:
        >>> ByteTokenizer().encode("Aa").tolist()
        [69, 101]
    """

    offset = 4
    vocab_size = 256 + offset

    def as_dict(self):
        """What config.json and export.json say of it."""
        return {"kind": "bytes", "offset": self.offset}

    def encode(self, text):
        """int32 [N] of a `str` (its UTF-8) or `bytes`, without special ids."""
        data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        return np.frombuffer(data, np.uint8).astype(np.int32) + self.offset

    def encode_batch(self, texts):
        """int32 [B, T] of several texts, each after the id of the begin of a text, padded with 0 on the right."""
        rows = [np.concatenate([[BOS_ID], self.encode(text)]) for text in texts]
        width = max(map(len, rows), default=0)
        return np.stack([np.pad(row, (0, width - len(row)), constant_values=PAD_ID) for row in rows]).astype(np.int32)

    def decode(self, ids):
        """`bytes` of ids [N]; special ids have none."""
        ids = np.asarray(ids)
        return (ids[ids >= self.offset] - self.offset).astype(np.uint8).tobytes()
