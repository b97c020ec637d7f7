"""A written SavedModel against the Keras model it came from."""

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
    random_inputs,
    vocabulary_of,
)
from keras_attention.export.own_models import output_names
from keras_attention.export.report import Comparison
from keras_attention.export.signatures import decodes, has_encoder
from keras_attention.export.state_names import named
from keras_attention.generation.best_answer import best_answer
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.generation.source_ids import source_ids
from keras_attention.text import BOS_ID, PAD_ID


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
    comparison = Comparison(model.compute_dtype)
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
    vocabulary = getattr(model, "source_vocab_size", None) or vocabulary_of(model)
    # A prompt shares the state with the steps after it; a source does not.
    longest = capacity if has_encoder(model) else max(1, capacity - 1)
    lengths = sorted({min(length, longest) for length in LENGTHS})
    for batch in BATCHES:
        for length in lengths:
            ids, real = random_ids(rng, batch, length, vocabulary)
            _decoding(model, served, ids, real, capacity, rng, comparison)
            if has_encoder(model):
                _answers(model, served, ids, real, capacity, comparison, beams=beams, length_penalty=length_penalty)
    if tokenizer is not None and has_encoder(model):
        _texts(served, tokenizer, rng, capacity)
        comparison.differences["texts"] = 0.0
    return comparison


def _decoding(model, served, ids, real, capacity, rng, comparison):
    source = tf.constant(masked(ids, real))
    inputs = {"input_ids": tf.constant(ids), "input_lengths": tf.constant(real)}
    if has_encoder(model):
        got = served["encode"](**inputs)
        comparison.numbers("encode", got["memory"], outward(model.encode(source)))
        vocabulary = getattr(model, "target_vocab_size", None) or vocabulary_of(model)
        target, target_real = random_ids(rng, len(ids), min(2, max(1, capacity - 1)), vocabulary)
        target[:, 0] = BOS_ID if vocabulary > BOS_ID else 0
        inputs |= {"target_ids": tf.constant(target), "target_lengths": tf.constant(target_real)}
        prompt, prompt_real = tf.constant(masked(target, target_real)), target_real
        state = model.init_state(source, max_length=capacity)
    else:
        vocabulary, prompt, prompt_real = vocabulary_of(model), source, real
        state = model.init_state(len(ids), max_length=capacity)
    logits, state = model.prefill(prompt, state)
    got = dict(served["prefill"](**inputs))
    _decoded("prefill", got, logits, state, comparison, prompt_real)
    for _ in range(min(STEPS, capacity - prompt.shape[1])):
        token = random_ids(rng, len(ids), 1, vocabulary)[0][:, 0]
        logits, state = model.step(tf.constant(token), state)
        got.pop("logits")
        got = dict(served["decode_step"](token=tf.constant(token), **got))
        _decoded("decode_step", got, logits, state, comparison)


def _decoded(what, got, logits, state, comparison, lengths=None):
    got_logits, want = np.array(got["logits"]), np.array(outward(logits))
    if lengths is not None:
        # What a model says at padding is nobody's concern.
        padding = np.arange(want.shape[1]) >= lengths[:, None]
        got_logits, want = (np.where(padding[:, :, None], 0, x) for x in (got_logits, want))
    comparison.numbers(what, got_logits, want)
    for name, x in named(state).items():
        comparison.numbers(f"{what}: state", got[name], outward(x))


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
