"""Greedy translation with the model in training, for its validation scores."""

import numpy as np
import tensorflow as tf

from keras_attention.generation.greedy import greedy
from keras_attention.text import BOS_ID, EOS_ID, PAD_ID


def greedy_translator(model, tokenizer, max_length, batch_size=64):
    """A function that translates texts with the model's current weights.

    One graph serves all batches: lengths are unknown to it, the decoding state has a fixed size.

    Args:
        model: a model with `init_state` and `step`, such as `keras_attention.models.Transformer`.
        tokenizer: with `encode` and `decode`.
        max_length: most tokens of a source (longer ones lose their end) and of a translation.
        batch_size: texts in a batch; they are sorted by length first.

    Returns:
        function `list[str] -> list[str]`, in the order given.
    """

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def translate_ids(source):
        state = model.init_state(source, max_length=max_length)
        start = tf.fill(tf.shape(source)[:1], BOS_ID)
        return greedy(model.step, state, start, end_id=EOS_ID, pad_id=PAD_ID, max_new_tokens=max_length).tokens

    def translate(texts):
        ids = [[BOS_ID, *row[: max_length - 2], EOS_ID] for row in tokenizer.encode(list(texts))]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        translations = [""] * len(ids)
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            source = np.full((len(rows), len(ids[rows[-1]])), PAD_ID, np.int32)
            for place, row in enumerate(rows):
                source[place, : len(ids[row])] = ids[row]
            for row, text in zip(rows, tokenizer.decode(translate_ids(source).numpy())):
                translations[row] = text
        return translations

    return translate
