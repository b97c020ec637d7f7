"""Written ONNX files, run by ONNX Runtime, against the Keras model they came from."""

import contextlib

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import outward
from keras_attention.export.comparing import (
    ANSWER_TOKENS,
    BATCHES,
    LENGTHS,
    STEPS,
    answer_scores,
    masked,
    random_ids,
    random_inputs,
)
from keras_attention.export.decoding_check import compare_decoding, inputs_of
from keras_attention.export.kinds.own import output_names
from keras_attention.export.onnx_folder.graph import require_packages
from keras_attention.export.report import Comparison, precision_of
from keras_attention.export.state_names import named
from keras_attention.generation.array_beam import array_beam_search
from keras_attention.generation.best_answer import best_answer
from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID

# What the names of a decoding state's tensors begin with, on their way into a graph and out of it.
PAST, PRESENT = "past.", "present."


class Graph:
    """An ONNX file in ONNX Runtime: arrays by name in, arrays by name out.

    Raises:
        UsageError: ONNX Runtime does not load the file, or not run it.
    """

    def __init__(self, path):
        _, _, onnxruntime = require_packages()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: they are raised as well
        self.name = path.name
        with self._refusals("load"):
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def __call__(self, given):
        feeds = {name: np.asarray(given[name]) for name in self.inputs}
        with self._refusals("run"):
            return dict(zip(self.outputs, self.session.run(self.outputs, feeds), strict=True))

    @contextlib.contextmanager
    def _refusals(self, act):
        try:
            yield
        except Exception as error:
            # onnxruntime has a class for each kind of fault and no common one.
            reason = " ".join(str(error).split())[:300]
            raise UsageError(
                f"The export failed its check: ONNX Runtime does not {act} {self.name} ({reason}); nothing was written."
            ) from error


def compare_own(model, path, own, samples):
    """One file of a user's own model; returns the `Comparison`, or raises `UsageError`."""
    endpoint, structure = own
    comparison = Comparison(precision_of(model))
    graph = Graph(path)
    for sample in samples or random_inputs(model, structure, np.random.default_rng(0)):
        sample = tf.nest.map_structure(lambda spec, x: tf.cast(x, spec.dtype), structure, sample)
        tensors = map(outward, named(sample).values())
        got = graph({spec.name: x for spec, x in zip(endpoint.inputs, tensors, strict=True)})
        for name, x in output_names(model, model(sample, training=False)).items():
            comparison.numbers(name, got[name], outward(x))
    return comparison


def compare_decoder(model, folder, capacity, comparison):
    """prefill.onnx and decode_step.onnx of a model without an encoder, added to `comparison`."""
    rng = np.random.default_rng(0)
    served = {name: _by_keyword(Graph(folder / f"{name}.onnx")) for name in ("prefill", "decode_step")}
    for ids, real in inputs_of(model, capacity, rng):
        compare_decoding(model, served, ids, real, capacity, rng, comparison)


def _by_keyword(graph):
    """A graph as a function of keywords, whose state has the same names on both sides."""

    def call(**given):
        outputs = graph({**given, **{PAST + name: x for name, x in given.items()}})
        return {name.removeprefix(PRESENT): x for name, x in outputs.items()}

    return call


def compare_transformer(model, folder, *, beams, length_penalty):
    """The three graphs of a `Transformer`; returns the `Comparison`, or raises `UsageError`."""
    comparison = Comparison(precision_of(model))
    names = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
    decoder = OnnxDecoder(*(Graph(folder / name) for name in names))
    rng = np.random.default_rng(0)
    for batch in BATCHES:
        for length in LENGTHS:
            _compare(model, decoder, comparison, rng, batch, min(length, model.max_length), beams, length_penalty)
    return comparison


def _compare(model, decoder, comparison, rng, batch, length, beams, length_penalty):
    source = masked(*random_ids(rng, batch, length, model.get_config()["source_vocab_size"]))
    memory, mask = decoder.encode(source)
    keras_memory = outward(model.encode(tf.constant(source)))
    real = mask[:, :, None] != 0
    comparison.numbers("encoder", np.where(real, memory, 0), np.where(real, keras_memory, 0))

    steps = min(STEPS, model.max_length - 2)
    target = rng.integers(PAD_ID + 1, model.target_vocab_size, (batch, 2 + max(steps, 0))).astype(np.int32)
    state = model.init_state(tf.constant(source))
    want, state = model.prefill(tf.constant(target[:, :2]), state)
    got, past = decoder.start(target[:, :2], memory, mask)
    comparison.numbers("decoder", got, want)
    for t in range(2, target.shape[1]):
        want, state = model.step(tf.constant(target[:, t]), state)
        got, past = decoder.more(target[:, t : t + 1], past, mask)
        comparison.numbers("decoder_with_past", got[:, 0], want)
    for name, x in past.items():
        _, layer, kind, part = name.split(".")
        kept = state["layers"][layer]["self" if kind == "decoder" else "memory"][part]
        groups = x.shape[1] // kept.shape[1]
        comparison.numbers("keys and values", x, np.repeat(kept, groups, axis=1))

    limits = np.full(batch, min(ANSWER_TOKENS, model.max_length), np.int32)
    state, options = model.init_state(tf.constant(source)), {"beams": beams, "length_penalty": length_penalty}
    want = best_answer(model, state, limits=tf.constant(limits), **options)

    def rescore(tokens, lengths):
        return answer_scores(model, state, tokens, lengths, **options)

    got = decoder.answer(source, limits, beams, length_penalty)
    comparison.answers("answers", got, want._asdict(), rescore)


class OnnxDecoder:
    """The three graphs as one decoder."""

    def __init__(self, encoder, first, further):
        self.encoder, self.first, self.further = encoder, first, further

    def encode(self, source):
        """`(memory, mask)` of ids [B, S] with padding 0."""
        mask = (source != PAD_ID).astype(np.int64)
        output = self.encoder({"input_ids": source.astype(np.int64), "attention_mask": mask})
        return output["last_hidden_state"], mask

    def start(self, tokens, memory, mask):
        """`(logits, past)` after the first tokens [B, T]."""
        given = {"input_ids": tokens.astype(np.int64), "encoder_attention_mask": mask, "encoder_hidden_states": memory}
        return self._read(self.first(given), {})

    def more(self, tokens, past, mask):
        """`(logits, past)` after further tokens [B, T]."""
        given = {"input_ids": tokens.astype(np.int64), "encoder_attention_mask": mask, **past}
        return self._read(self.further(given), past)

    def _read(self, outputs, past):
        logits = outputs.pop("logits")
        return logits, {**past, **{name.replace("present", "past_key_values"): x for name, x in outputs.items()}}

    def answer(self, source, limits, beams, length_penalty):
        """The best answers of source ids [B, S]: dict of tokens [B, N], lengths [B], scores [B]."""
        memory, mask = (x.repeat(beams, axis=0) for x in self.encode(source))

        def step(tokens, past):
            tokens = tokens[:, None]
            logits, past = self.start(tokens, memory, mask) if past is None else self.more(tokens, past, mask)
            return logits[:, -1], past

        def reorder(past, parents):
            return {name: x[parents] for name, x in past.items()}

        result = array_beam_search(
            step,
            reorder,
            None,
            np.full(len(source), BOS_ID, np.int32),
            beams=beams,
            end_id=EOS_ID,
            pad_id=PAD_ID,
            max_new_tokens=limits,
            length_penalty=length_penalty if beams > 1 else 0.0,  # the greedy search scores by the plain sum
            forbidden=(PAD_ID, BOS_ID),
        )
        return {"tokens": result.tokens[:, 0], "lengths": result.lengths[:, 0], "scores": result.scores[:, 0]}
