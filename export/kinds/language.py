"""Models that decode without an encoder, such as `DecoderLM`: their call, `prefill` and `decode_step`."""

import numpy as np

from keras_attention.export.decoding_check import compare_decoding, inputs_of
from keras_attention.export.kinds.own import OwnModelPlan
from keras_attention.export.onnx_folder.graph import graph_of_endpoint
from keras_attention.export.precision import in_float32
from keras_attention.export.signatures import capacity_of, decodes, decoding_endpoints, has_encoder
from keras_attention.inference.keras_models import check_vocabulary
from keras_attention.inference.text_generator import PAST, PRESENT
from keras_attention.models import DecoderLM
from keras_attention.text import ByteTokenizer


class LanguagePlan(OwnModelPlan):
    """`serving_default` as of any model, beside `prefill` and `decode_step` with a state of fixed size.

    No two tensors of an ONNX graph can have one name: there the state's "layers.0.key" comes out as
    "present.layers.0.key" and goes in again as "past.layers.0.key".
    """

    nan_is_meant = False

    @classmethod
    def takes(cls, model, images, onnx):
        return decodes(model) and not has_encoder(model)

    def options(self):
        # A tokenizer of bytes is noted for `TextGenerator`.
        noted = ("tokenizer",) if isinstance(self.given.tokenizer, ByteTokenizer) else ()
        return ("max_length", *super().options(), *noted)

    def prepare(self):
        if self.onnx and isinstance(self.model, DecoderLM):  # how to make another in float32 is not known
            self.model = in_float32(self.model)
        self.capacity = capacity_of(self.model, self.given.max_length)
        super().prepare()
        self.prefill, self.step = decoding_endpoints(self.model, self.capacity)
        if self.given.tokenizer is not None:
            check_vocabulary(self.given.tokenizer, self.step.outputs["logits"].shape[-1], "The export")

    def described(self):
        tokenizer = self.given.tokenizer
        return {"max_length": self.capacity} | ({} if tokenizer is None else {"tokenizer": tokenizer.as_dict()})

    def endpoints(self):
        return {**super().endpoints(), "prefill": self.prefill, "decode_step": self.step}

    def compare_served(self, served):
        return self._with_decoding(super().compare_served(served), served)

    def graphs(self):
        state = {spec.name for spec in self.step.inputs} - {"token"}
        decoding = {f"{e.name}.onnx": graph_of_endpoint(e, state, PAST, PRESENT) for e in (self.prefill, self.step)}
        return {**super().graphs(), **decoding}

    def compare_onnx(self, sessions):
        served = {name: _by_keyword(sessions[f"{name}.onnx"]) for name in ("prefill", "decode_step")}
        return self._with_decoding(super().compare_onnx(sessions), served)

    def _with_decoding(self, comparison, served):
        rng = np.random.default_rng(0)
        for ids, real in inputs_of(self.model, self.capacity, rng):
            compare_decoding(self.model, served, ids, real, self.capacity, rng, comparison)
        return comparison


def _by_keyword(session):
    """A graph as a function of keywords, whose state has the same names on both sides."""

    def call(**given):
        outputs = session({**given, **{PAST + name: x for name, x in given.items()}})
        return {name.removeprefix(PRESENT): x for name, x in outputs.items()}

    return call
