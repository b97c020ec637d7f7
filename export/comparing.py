"""Inputs on which exports and Keras are compared."""

import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.generation.beam import length_penalty_of
from keras_attention.text.special_ids import BOS_ID, PAD_ID

BATCHES = (1, 3)
LENGTHS = (4, 7, 12)
STEPS = 3
ANSWER_TOKENS = 5  # of a generated answer; an untrained model would run to its limit
FIRST_ID = 4  # after the special ids


def random_ids(rng, batch, length, vocabulary):
    """Ids [B, S] and lengths [B]: rows of different lengths, with a token where a server pads."""
    low = FIRST_ID if vocabulary > FIRST_ID else 0
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


def random_inputs(model, structure, rng):
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


def answer_scores(model, state, tokens, lengths, *, beams, length_penalty):
    """The scores that a search of `model` gives to answers.

    Args:
        model: with `prefill`.
        state: its state after the source was read.
        tokens, lengths: the answers, int32 [B, N] and [B].
        beams, length_penalty: of the search.

    Returns:
        float32 [B].
    """
    tokens, lengths = np.asarray(tokens, np.int32), np.asarray(lengths)
    read = np.concatenate([np.full((len(tokens), 1), BOS_ID, np.int32), tokens[:, :-1]], axis=1)
    logits = np.array(tf.cast(model.prefill(tf.constant(read), state)[0], tf.float32))
    logits[:, :, [PAD_ID, BOS_ID]] = -np.inf
    log_probs = np.take_along_axis(np.array(tf.nn.log_softmax(logits)), tokens[:, :, None], axis=2)[:, :, 0]
    sums = np.where(np.arange(tokens.shape[1]) < lengths[:, None], log_probs, 0).sum(axis=1)
    # The greedy search scores by the plain sum.
    return sums if beams == 1 else sums / length_penalty_of(lengths, length_penalty).numpy()
