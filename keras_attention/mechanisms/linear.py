"""Linear attention: sums over features of the keys in place of scores."""

import inspect

import keras
import tensorflow as tf

from keras_attention.mechanisms.base import Supports, register
from keras_attention.mechanisms.recurrent import Recurrent
from keras_attention.ops.basics import checks
from keras_attention.ops.kernels import linear


@register("linear")
class LinearAttention(Recurrent):
    """Weights phi(q).phi(k) over their sum, in time and memory linear in T and S, and O(D^2) of state per step.

    Choose it for long sequences and for decoding without a growing cache, where a broad average over the keys is
    enough: without softmax no single key can be picked out sharply.

    Rotary positions turn the features in the numerator and leave the normalizer alone, as RoFormer has it.

    Args:
        feature_map: "elu" (elu + 1), "relu", "softplus", or a function [..., D] -> [..., F] with values >= 0. To be
            loaded again it must be registered (`keras.saving.register_keras_serializable`).
        chunk_size: keys per chunk of the causal form; memory T * chunk_size for scores inside chunks.

    Reference: Katharopoulos et al., "Transformers are RNNs", 2020, https://arxiv.org/abs/2006.16236
    """

    supports = Supports(
        free_mask=False,
        bias=False,
        scores=False,
        dropout=False,
        temperature=False,
        rotary="features",
        state="recurrent",
        time="(T+S)*D^2",
        memory="(T+S)*D",
        paper="Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236",
    )

    def __init__(self, feature_map="elu", chunk_size=linear.CHUNK, **kwargs):
        super().__init__(**kwargs)
        if isinstance(feature_map, dict):
            feature_map = keras.saving.deserialize_keras_object(feature_map)
        self.feature_map = feature_map
        self.chunk_size = checks.positive_int("chunk_size", chunk_size)
        self._phi = linear.feature_map_function(feature_map)

    def read(self, q, k, v, *, padding_mask, causal, scale, state, rotate=None):
        result = linear.linear_attention(
            q,
            k,
            v,
            padding_mask=padding_mask,
            use_causal_mask=causal,
            feature_map=self._phi,
            rotate=rotate,
            state=state,
            return_state=causal,
            chunk_size=self.chunk_size,
        )
        return result if causal else (result, None)

    def empty_state(self, batch_size, num_heads, head_dim, dtype):
        # The number of features is the function's own affair.
        features = self._phi(tf.zeros([1, head_dim])).shape[-1]
        return linear.empty_state(batch_size, num_heads, features, head_dim, dtype)

    def copied(self, **changes):
        # The function itself: one that is not registered can be used, although not loaded again.
        return type(self).from_config({**super().get_config(), "feature_map": self.feature_map, **changes})

    def get_config(self):
        config, given = super().get_config(), self.feature_map
        return {**config, "feature_map": given if isinstance(given, str) else _serialized(given)}


def _serialized(function):
    """The config of a function. Refuses one that Keras would load as another: its own of the same name."""
    config = keras.saving.serialize_keras_object(function)
    try:
        loaded = keras.saving.deserialize_keras_object(config)
    except (TypeError, ValueError):
        return config  # not registered, or a lambda: Keras says so to whoever loads it, and takes custom_objects
    # An object with a config of its own comes back as another object, which is right.
    if inspect.isfunction(function) and loaded is not function:
        raise ValueError(
            f"feature_map {function.__name__!r} would be loaded as Keras' function of that name: register yours "
            "with keras.saving.register_keras_serializable, or give it another name."
        )
    return config
