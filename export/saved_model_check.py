"""A written SavedModel against the Keras model it came from."""

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import outward
from keras_attention.export.own_models import output_names
from keras_attention.export.report import Comparison
from keras_attention.export.signatures import decodes, has_encoder
from keras_attention.export.state_names import named
from keras_attention.generation.best_answer import best_answer
from keras_attention.generation.source_ids import source_ids
from keras_attention.text import BOS_ID, PAD_ID

BATCHES = (1, 3)
LENGTHS = (4, 7, 12)
STEPS = 3
ANSWER_TOKENS = 5  # of a generated answer; an untrained model would run to its limit
_FIRST_ID = 4  # after the special ids


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
        for sample in samples or _random_inputs(model, structure, rng):
            sample = tf.nest.map_structure(lambda spec, x: tf.cast(x, spec.dtype), structure, sample)
            want = output_names(model, model(sample, training=False))
            got = served["serving_default"](**dict(zip(names, map(outward, named(sample).values()), strict=True)))
            for name, x in want.items():
                comparison.numbers(name, got[name], outward(x))
    if not decodes(model):
        return comparison
    vocabulary = getattr(model, "source_vocab_size", None) or vocabulary_of(model)
    lengths = [length for length in LENGTHS if length + STEPS <= capacity] or [max(1, capacity - STEPS)]
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


def random_ids(rng, batch, length, vocabulary):
    """Ids [B, S] and lengths [B]: rows of different lengths, with a token where a server pads."""
    low = _FIRST_ID if vocabulary > _FIRST_ID else 0
    ids = rng.integers(low, vocabulary, (batch, length)).astype(np.int32)
    real = rng.integers(max(1, length // 2), length + 1, batch).astype(np.int32)
    real[0] = length
    return ids, real


def vocabulary_of(model):
    """The smallest vocabulary among a model's embeddings: ids below it are safe everywhere."""
    sizes = [
        size
        for layer in model._flatten_layers(include_self=False)
        for size in [getattr(layer, "vocab_size", None) or getattr(layer, "input_dim", None)]
        if isinstance(size, int)
    ]
    return min(sizes, default=2)


def masked(ids, lengths):
    """Ids with padding 0 after each row's length, as Keras takes them."""
    return np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, 0).astype(np.int32)


def _decoding(model, served, ids, real, capacity, rng, comparison):
    source = tf.constant(masked(ids, real))
    inputs = {"input_ids": tf.constant(ids), "input_lengths": tf.constant(real)}
    if has_encoder(model):
        got = served["encode"](**inputs)
        comparison.numbers("encode", got["memory"], outward(model.encode(source)))
        vocabulary = getattr(model, "target_vocab_size", None) or vocabulary_of(model)
        target, target_real = random_ids(rng, len(ids), 2, vocabulary)
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
    for _ in range(STEPS):
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
    want = best_answer(model, model.init_state(tf.constant(masked(ids, real))), limits=limits, **options)
    got = served["generate"](input_ids=tf.constant(ids), input_lengths=tf.constant(real), max_new_tokens=limits)
    got = {"tokens": got["output_ids"], "lengths": got["output_lengths"], "scores": got["scores"]}
    comparison.answers("generate", got, want._asdict())


def _texts(served, tokenizer, rng, capacity):
    """Texts in, texts out, against the tokenizer's Python side with `generate`, compared before, in between."""
    texts = tokenizer.decode([rng.integers(_FIRST_ID, tokenizer.vocab_size, length) for length in LENGTHS])
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


def _random_inputs(model, structure, rng):
    """Inputs of two batch sizes and three lengths for specs of any shape."""
    vocabulary = vocabulary_of(model)

    def random(spec, batch, length):
        if spec.dtype == tf.string:
            raise UsageError("A model with text inputs is compared on texts of yours: give samples=, a list of inputs.")
        shape = [batch, *(length if size is None else size for size in spec.shape[1:])]
        if spec.dtype == tf.bool:
            return rng.random(shape) < 0.7
        return rng.integers(0, vocabulary, shape) if spec.dtype.is_integer else rng.normal(size=shape)

    def sample(batch, length):
        return tf.nest.map_structure(lambda spec: tf.constant(random(spec, batch, length), spec.dtype), structure)

    return [sample(batch, length) for batch in BATCHES for length in LENGTHS]
