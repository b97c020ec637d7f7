"""A decoder-only model as a user writes it: our attention layer, and the three methods that exports look for."""

import keras
import tensorflow as tf

from keras_attention.layers import MultiHeadAttention


class TinyLanguageModel(keras.Model):
    """Logits [B, T, V] of ids [B, T]; id 0 is padding."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, width)
        self.attention = MultiHeadAttention(d_model=width, num_heads=2)
        self.dense = keras.layers.Dense(vocabulary)

    def call(self, ids):
        x = self.embedding(ids)
        return self.dense(x + self.attention(x, padding_mask=ids != 0, use_causal_mask=True))

    def init_state(self, batch_size, max_length=None):
        return {"attention": self.attention.init_state(batch_size, max_length)}

    def prefill(self, tokens, state):
        x = self.embedding(tokens)
        attended, new = self.attention(x, padding_mask=tf.not_equal(tokens, 0), state=state["attention"])
        return self.dense(x + attended), {"attention": new}

    def step(self, token, state):
        logits, state = self.prefill(token[:, None], state)
        return logits[:, 0], state
