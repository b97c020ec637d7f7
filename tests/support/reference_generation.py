"""A small language model in TensorFlow and in NumPy, and searches over the NumPy one by other means."""

import itertools

import numpy as np
import tensorflow as tf


class ToyModel:
    """Logits from the last token, from every token before it (a growing tensor) and from a memory (a fixed one).

    The two storages compute the same: `growing` concatenates, `fixed` writes into `capacity` positions with a length
    for each row, and answers NaN past its end.
    """

    def __init__(self, rng, *, vocabulary, size=3, capacity=None, spread=1.5):
        self.vocabulary, self.size, self.capacity = vocabulary, size, capacity
        self.table = rng.normal(0, spread, (vocabulary, vocabulary)).astype("float32")
        self.embedding = rng.normal(0, 1, (vocabulary, size)).astype("float32")
        self.output = rng.normal(0, spread, (size, vocabulary)).astype("float32")

    def state(self, memory):
        memory = tf.convert_to_tensor(memory, tf.float32)
        rows = tf.shape(memory)[0]
        if self.capacity is None:
            return {"self": {"keys": tf.zeros([rows, 0, self.size])}, "memory": memory}
        keys = tf.zeros([rows, self.capacity, self.size])
        return {"self": {"keys": keys, "lengths": tf.zeros([rows], tf.int32)}, "memory": memory}

    def step(self, tokens, state):
        new = tf.gather(self.embedding, tokens)[:, None, :]  # [B, 1, D]
        if self.capacity is None:
            keys = tf.concat([state["self"]["keys"], new], axis=1)
            count = tf.cast(tf.shape(keys)[1], tf.float32)
            after, fits = {"keys": keys}, tf.fill(tf.shape(tokens), True)
        else:
            lengths = state["self"]["lengths"]
            here = tf.range(self.capacity) == lengths[:, None]
            keys = tf.where(here[:, :, None], new, state["self"]["keys"])
            fits = lengths < self.capacity
            lengths = lengths + tf.cast(fits, tf.int32)
            count, after = tf.cast(lengths, tf.float32)[:, None], {"keys": keys, "lengths": lengths}
        context = tf.reduce_sum(keys, axis=1) / count * tf.tanh(count / 3.0)
        logits = tf.gather(self.table, tokens) + tf.matmul(context, self.output) + state["memory"]
        return tf.where(fits[:, None], logits, np.nan), {"self": after, "memory": state["memory"]}

    def log_probs(self, memory, prefix):
        """Float64 `[V]` after the tokens `prefix` (the start token first), for one row's memory `[V]`."""
        embedding, table = self.embedding.astype("float64"), self.table.astype("float64")
        context = embedding[prefix].mean(axis=0) * np.tanh(len(prefix) / 3.0)
        logits = table[prefix[-1]] + context @ self.output.astype("float64") + np.asarray(memory, "float64")
        logits = logits - logits.max()
        return logits - np.log(np.exp(logits).sum())


def reorder(state, parents):
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, parents), state)


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def greedy(model, memory, start, *, end_id, limit):
    """`(tokens, score)` of one row, in a loop."""
    tokens, score = [], 0.0
    while len(tokens) < limit and (not tokens or tokens[-1] != end_id):
        log_probs = model.log_probs(memory, [start, *tokens])
        tokens.append(int(log_probs.argmax()))
        score += log_probs[tokens[-1]]
    return tokens, score


def every_sequence(model, memory, start, *, end_id, limit, alpha):
    """All complete sequences of one row as `(score, tokens)`, best first."""
    found = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(range(model.vocabulary), repeat=length):
            if end_id in tokens[:-1] or (length < limit and tokens[-1] != end_id):
                continue
            total = sum(model.log_probs(memory, [start, *tokens[:i]])[tokens[i]] for i in range(length))
            found.append((total / penalty(length, alpha), list(tokens)))
    return sorted(found, reverse=True)


def beam(model, memory, start, *, beams, end_id, limit, alpha):
    """The search of `beam_search` for one row with lists, and without its early stop, as `(score, tokens)`.

    It walks down the list of all proposals: those that end become answers, the others run on until there are `beams`
    of them; at most so many can end, so that nothing of interest stands beyond the first `2 * beams`.
    """
    running, ended = [(0.0, [])], []
    for length in range(1, limit + 1):
        proposals = []
        for total, tokens in running:
            log_probs = model.log_probs(memory, [start, *tokens])
            proposals += [(total + log_probs[token], [*tokens, token]) for token in range(model.vocabulary)]
        proposals.sort(key=lambda proposal: -proposal[0])
        running, answers = [], []
        for total, tokens in proposals[: 2 * beams if beams > 1 else 1]:
            if tokens[-1] == end_id or length == limit:
                answers.append((total / penalty(length, alpha), tokens))
            elif len(running) < beams:
                running.append((total, tokens))
        ended = sorted(ended + answers, key=lambda answer: -answer[0])[:beams]
        if not running:
            break
    return ended
