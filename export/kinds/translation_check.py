"""The exports of an encoder-decoder against the Keras model they came from."""

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import outward
from keras_attention.export.comparing import (
    ANSWER_TOKENS,
    BATCHES,
    FIRST_ID,
    LENGTHS,
    STEPS,
    answer_scores,
    masked,
    random_ids,
)
from keras_attention.export.decoding_check import compare_decoding, inputs_of
from keras_attention.export.precision import precision_of
from keras_attention.export.report import Comparison
from keras_attention.generation.best_search import best_answer
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.inference.source_ids import source_ids
from keras_attention.text import PAD_ID


def compare_served(model, served, *, capacity, tokenizer, beams, length_penalty):
    """Every signature of a SavedModel against Keras on the same random inputs.

    Args:
        model: the Keras model.
        served: dict of the loaded signatures.
        capacity: size of decoding states.
        tokenizer: of `translate`, or None.
        beams, length_penalty: of the search.

    Returns:
        `Comparison`.

    Raises:
        UsageError: a difference that is too large.
    """
    comparison, rng = Comparison(precision_of(model)), np.random.default_rng(0)
    for ids, real in inputs_of(model, capacity, rng):
        compare_decoding(model, served, ids, real, capacity, rng, comparison)
        limits = tf.fill([len(ids)], min(ANSWER_TOKENS, capacity))
        got = served["generate"](input_ids=tf.constant(ids), input_lengths=tf.constant(real), max_new_tokens=limits)
        got = {"tokens": got["output_ids"], "lengths": got["output_lengths"], "scores": got["scores"]}
        state = decoding_state(model, tf.constant(masked(ids, real)), capacity)
        _compare_answers("generate", model, state, limits, got, comparison, beams=beams, length_penalty=length_penalty)
    if tokenizer is not None:
        _compare_texts(served, tokenizer, rng, capacity)
        comparison.differences["texts"] = 0.0
    return comparison


def compare_onnx(model, decoder, *, beams, length_penalty):
    """The three graphs of a `Transformer`, an `OnnxDecoder`, against Keras; returns the `Comparison`."""
    comparison, rng = Comparison(precision_of(model)), np.random.default_rng(0)
    for batch in BATCHES:
        for length in LENGTHS:
            source = masked(
                *random_ids(rng, batch, min(length, model.max_length), model.get_config()["source_vocab_size"])
            )
            _compare_steps(model, decoder, source, rng, comparison)
            limits = np.full(batch, min(ANSWER_TOKENS, model.max_length), np.int32)
            got = decoder.answer(source, limits, beams, length_penalty)
            state, options = model.init_state(tf.constant(source)), {"beams": beams, "length_penalty": length_penalty}
            _compare_answers("answers", model, state, tf.constant(limits), got, comparison, **options)
    return comparison


def _compare_steps(model, decoder, source, rng, comparison):
    """The encoder, and the decoder token by token, with its keys and values."""
    memory, mask = decoder.encode(source)
    keras_memory = outward(model.encode(tf.constant(source)))
    real = mask[:, :, None] != 0
    comparison.numbers("encoder", np.where(real, memory, 0), np.where(real, keras_memory, 0))

    steps = min(STEPS, model.max_length - 2)
    target = rng.integers(PAD_ID + 1, model.target_vocab_size, (len(source), 2 + max(steps, 0))).astype(np.int32)
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


def _compare_answers(what, model, state, limits, got, comparison, **options):
    """Whole answers, of which Keras scores those that differ by rounding."""
    want = best_answer(model, state, limits=limits, **options)

    def rescore(tokens, lengths):
        return answer_scores(model, state, tokens, lengths, **options)

    comparison.answers(what, got, want._asdict(), rescore)


def _compare_texts(served, tokenizer, rng, capacity):
    """Texts in, texts out, against the tokenizer's Python side with `generate`, compared before, in between."""
    texts = tokenizer.decode([rng.integers(FIRST_ID, tokenizer.vocab_size, length) for length in LENGTHS])
    for some in ([texts[0]], texts):
        source = source_ids(tokenizer, some, capacity)
        ids = served["generate"](
            input_ids=tf.constant(source),
            input_lengths=tf.constant((source != PAD_ID).sum(axis=1), tf.int32),
            max_new_tokens=tf.zeros(len(some), tf.int32),
        )["output_ids"]
        wanted = tokenizer.decode(ids.numpy())
        given = served["translate"](text=tf.constant(some))["text"].numpy()
        for text, got, want in zip(some, given, wanted, strict=True):
            want = want if text.strip() else ""
            if got.decode("utf-8", "replace") != want:
                raise UsageError(
                    f"The export failed its check: {text!r} becomes {got!r}, Keras gives {want!r}; nothing was written."
                )
