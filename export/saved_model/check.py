"""A written SavedModel against the Keras model it came from."""

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import outward
from keras_attention.export.comparing import ANSWER_TOKENS, FIRST_ID, LENGTHS, answer_scores, masked, random_inputs
from keras_attention.export.decoding_check import compare_decoding, inputs_of
from keras_attention.export.kinds.own import output_names
from keras_attention.export.report import Comparison, precision_of
from keras_attention.export.signatures import decodes, has_encoder
from keras_attention.export.state_names import named
from keras_attention.generation.best_answer import best_answer
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.inference.source_ids import source_ids
from keras_attention.text.special_ids import PAD_ID


def compare(model, served, *, capacity, tokenizer, own, samples, beams, length_penalty):
    """Runs every signature and Keras on the same random inputs.

    Args:
        model: the Keras model.
        served: dict of the loaded SavedModel's signatures.
        capacity: size of decoding states.
        tokenizer: of `translate`, or None.
        own: None, or what `own_endpoint` returned.
        samples: list of inputs for `own`, or None for random ones.
        beams, length_penalty: of the search.

    Returns:
        `Comparison`.

    Raises:
        UsageError: a difference that is too large.
    """
    comparison = Comparison(precision_of(model))
    rng = np.random.default_rng(0)
    if own is not None:
        endpoint, structure = own
        names = [spec.name for spec in endpoint.inputs]
        for sample in samples or random_inputs(model, structure, rng):
            sample = tf.nest.map_structure(lambda spec, x: tf.cast(x, spec.dtype), structure, sample)
            want = output_names(model, model(sample, training=False))
            got = served["serving_default"](**dict(zip(names, map(outward, named(sample).values()), strict=True)))
            for name, x in want.items():
                comparison.numbers(name, got[name], outward(x))
    if not decodes(model):
        return comparison
    for ids, real in inputs_of(model, capacity, rng):
        compare_decoding(model, served, ids, real, capacity, rng, comparison)
        if has_encoder(model):
            _answers(model, served, ids, real, capacity, comparison, beams=beams, length_penalty=length_penalty)
    if tokenizer is not None and has_encoder(model):
        _texts(served, tokenizer, rng, capacity)
        comparison.differences["texts"] = 0.0
    return comparison


def _answers(model, served, ids, real, capacity, comparison, **options):
    limits = tf.fill([len(ids)], min(ANSWER_TOKENS, capacity))
    state = decoding_state(model, tf.constant(masked(ids, real)), capacity)
    want = best_answer(model, state, limits=limits, **options)

    def rescore(tokens, lengths):
        return answer_scores(model, state, tokens, lengths, **options)

    got = served["generate"](input_ids=tf.constant(ids), input_lengths=tf.constant(real), max_new_tokens=limits)
    got = {"tokens": got["output_ids"], "lengths": got["output_lengths"], "scores": got["scores"]}
    comparison.answers("generate", got, want._asdict(), rescore)


def _texts(served, tokenizer, rng, capacity):
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
