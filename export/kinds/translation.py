"""Encoder-decoders, such as `keras_attention.models.Transformer`: text to text, and every step on the way."""

from keras_attention.export.kinds import translation_check
from keras_attention.export.kinds.answers import Answers, search_options
from keras_attention.export.kinds.translation_config import write_configs
from keras_attention.export.kinds.translation_graphs import TransformerGraphs
from keras_attention.export.plan import ExportPlan
from keras_attention.export.precision import in_float32
from keras_attention.export.signatures import capacity_of, decoding_endpoints, has_encoder
from keras_attention.inference.keras_models import check_vocabulary
from keras_attention.inference.onnx_decoder import OnnxDecoder
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer


class TranslationPlan(ExportPlan):
    """A SavedModel of any encoder-decoder; the ONNX layout of `optimum` is that of a `Transformer` alone."""

    otherwise = "what an encoder-decoder takes, and is compared on, is known"
    reasons = {
        "max_length": "the state of a Transformer's ONNX folder grows",
        "length_penalty": "the search is greedy without beams= of at least 2",
    }

    @classmethod
    def takes(cls, model, images, onnx):
        return isinstance(model, Transformer) if onnx else has_encoder(model)

    def options(self):
        if self.onnx:  # whose clients choose the search
            return ("tokenizer", "beams", "length_penalty")
        greedy = self.given.beams in (None, 1)
        return ("tokenizer", "max_length", "beams", *(() if greedy else ("length_penalty",)))

    def prepare(self):
        model, tokenizer = self.model, self.given.tokenizer
        self.search = search_options(self.given.beams, self.given.length_penalty)
        if isinstance(model, Transformer) and isinstance(tokenizer, SentencePieceTokenizer):
            for size in (model.get_config()["source_vocab_size"], model.target_vocab_size):
                check_vocabulary(tokenizer, size, "The export")
        if self.onnx:
            self.model = in_float32(model)
        else:
            self.capacity = capacity_of(model, self.given.max_length, texts=tokenizer is not None)

    def described(self):
        return self.search if self.onnx else {**self.search, "max_length": self.capacity}

    def endpoints(self):
        found = {endpoint.name: endpoint for endpoint in decoding_endpoints(self.model, self.capacity)}
        answers = Answers(self.model, self.capacity, **self.search)
        found["generate"] = found["serving_default"] = answers.generate()
        if self.given.tokenizer is not None:
            found["translate"] = found["serving_default"] = answers.translate(self.given.tokenizer)
        return found

    def compare_served(self, served):
        return translation_check.compare_served(
            self.model, served, capacity=self.capacity, tokenizer=self.given.tokenizer, **self.search
        )

    def resources(self):
        return [self.model, self.given.tokenizer]

    def write_extra_assets(self, folder):
        if isinstance(self.given.tokenizer, SentencePieceTokenizer):
            # For those who want to know how many ids a text has; the graph has its own.
            self.given.tokenizer.save(folder / "tokenizer.model")

    def graphs(self):
        return TransformerGraphs(self.model).graphs()

    def compare_onnx(self, sessions):
        return translation_check.compare_onnx(self.model, OnnxDecoder(*sessions.values()), **self.search)

    def write_companions(self, folder):
        write_configs(folder, self.model, self.search["beams"])
        if self.given.tokenizer is not None:
            self.given.tokenizer.save(folder / "tokenizer.model")
