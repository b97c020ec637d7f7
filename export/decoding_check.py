"""The signatures `prefill` and `decode_step` of a written export against the Keras model they came from."""

import numpy as np
import tensorflow as tf

from keras_attention.export.boundary import outward
from keras_attention.export.comparing import BATCHES, LENGTHS, STEPS, masked, random_ids, vocabulary_of
from keras_attention.export.signatures import has_encoder
from keras_attention.export.state_names import named
from keras_attention.text.special_ids import BOS_ID


def inputs_of(model, capacity, rng):
    """Pairs of ids [B, S] and lengths [B] at three lengths and two batch sizes, which fit a state of `capacity`."""
    vocabulary = getattr(model, "source_vocab_size", None) or vocabulary_of(model)
    # A prompt shares the state with the steps after it; a source does not.
    longest = capacity if has_encoder(model) else max(1, capacity - 1)
    lengths = sorted({min(length, longest) for length in LENGTHS})
    return [random_ids(rng, batch, length, vocabulary) for batch in BATCHES for length in lengths]


def compare_decoding(model, served, ids, real, capacity, rng, comparison):
    """Reads a prompt, or a source and the begin of its target, and a few tokens more, in the export and in Keras.

    Args:
        model: the Keras model.
        served: dict of name -> function of keyword arrays that returns a dict of arrays.
        ids, real: int32 [B, S] and [B], how many of each row are real.
        capacity: size of decoding states.
        rng: NumPy generator.
        comparison: `Comparison`, which raises for a difference that is too large.
    """
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
    _compare("prefill", got, logits, state, comparison, prompt_real)
    for _ in range(min(STEPS, capacity - prompt.shape[1])):
        token = random_ids(rng, len(ids), 1, vocabulary)[0][:, 0]
        logits, state = model.step(tf.constant(token), state)
        got.pop("logits")
        got = dict(served["decode_step"](token=tf.constant(token), **got))
        _compare("decode_step", got, logits, state, comparison)


def _compare(what, got, logits, state, comparison, lengths=None):
    got_logits, want = np.array(got["logits"]), np.array(outward(logits))
    if lengths is not None:
        # What a model says at padding is nobody's concern.
        padding = np.arange(want.shape[1]) >= lengths[:, None]
        got_logits, want = (np.where(padding[:, :, None], 0, x) for x in (got_logits, want))
    comparison.numbers(what, got_logits, want)
    for name, x in named(state).items():
        comparison.numbers(f"{what}: state", got[name], outward(x))
