"""The three graphs of an ONNX encoder-decoder as one decoder."""

import numpy as np

from keras_attention.generation.array_beam import array_beam_search
from keras_attention.inference.folders import ENCODER_DECODER
from keras_attention.inference.onnx_session import OnnxSession
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID


class OnnxDecoder:
    """Encoder, decoder and decoder with past, with the tensor names of `optimum`.

    The encoder runs once; the decoder once, for the first tokens (it also projects the memory's keys and values); the
    decoder with past for all further ones.

    Args:
        encoder, first, further: functions of a dict of arrays that return one, such as `OnnxSession`.
        start_id, end_ids, pad_id: the special ids of answers; any of `end_ids` ends one.
    """

    def __init__(self, encoder, first, further, *, start_id=BOS_ID, end_ids=(EOS_ID,), pad_id=PAD_ID):
        self.encoder, self.first, self.further = encoder, first, further
        self.start_id, self.end_ids, self.pad_id = start_id, end_ids, pad_id

    @classmethod
    def load(cls, folder, providers=None, **ids):
        """From the files encoder_model.onnx, decoder_model.onnx and decoder_with_past_model.onnx of a folder."""
        return cls(*(OnnxSession(folder / name, providers) for name in ENCODER_DECODER), **ids)

    def encode(self, source):
        """`(memory, mask)` of ids [B, S] with padding 0."""
        mask = (source != PAD_ID).astype(np.int64)
        return self.encoder({"input_ids": source, "attention_mask": mask})["last_hidden_state"], mask

    def start(self, tokens, memory, mask):
        """`(logits, past)` after the first tokens [B, T]."""
        given = {"input_ids": tokens, "encoder_attention_mask": mask, "encoder_hidden_states": memory}
        return self._read(self.first(given), {})

    def more(self, tokens, past, mask):
        """`(logits, past)` after further tokens [B, T]."""
        return self._read(self.further({"input_ids": tokens, "encoder_attention_mask": mask, **past}), past)

    def _read(self, outputs, past):
        present = {name.replace("present", "past_key_values", 1): x for name, x in outputs.items()}
        logits = present.pop("logits")
        return logits, {**past, **present}  # the memory's keys and values come once and stay

    def answer(self, source, limits, beams, length_penalty):
        """The best answers of source ids [B, S].

        Args:
            source: int32 [B, S].
            limits: int32 [B], the most tokens of each answer.
            beams, length_penalty: of the search; a greedy one scores by the plain sum.

        Returns:
            dict of tokens int32 [B, N], lengths [B], scores [B] and overflow [B], which is 1 where logits were no
            numbers.
        """
        memory, mask = (x.repeat(beams, axis=0) for x in self.encode(source))

        def step(tokens, past):
            tokens = tokens[:, None]
            logits, past = self.start(tokens, memory, mask) if past is None else self.more(tokens, past, mask)
            return logits[:, -1], past

        def reorder(past, parents):
            # A parent is of the same sentence, whose memory all its hypotheses share.
            return {name: x if ".encoder." in name else x[parents] for name, x in past.items()}

        result = array_beam_search(
            step,
            reorder,
            None,
            np.full(len(source), self.start_id, np.int32),
            beams=beams,
            end_id=self.end_ids,
            pad_id=self.pad_id,
            max_new_tokens=limits,
            length_penalty=length_penalty if beams > 1 else 0.0,
            forbidden=(self.pad_id, self.start_id),
        )
        best = {name: getattr(result, name)[:, 0] for name in ("tokens", "lengths", "scores")}
        return {**best, "overflow": result.overflow}
