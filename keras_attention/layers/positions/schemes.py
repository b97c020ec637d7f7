"""What `MultiHeadAttention(positions=)` takes: a scheme that tells attention where tokens stand, by name or object."""

import keras
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.recorded import Recorded

_REGISTRY = {}


class PositionScheme(Recorded, keras.layers.Layer):
    """One way to bring positions into attention itself, as opposed to adding them to the embeddings.

    A subclass sets `acts_on` and gives the hook that belongs to it:

    - "heads": `rotate(x, positions)` turns queries and keys [B, N, T, D] by the positions of their tokens.
    - "distance": `bias_at(distance)` gives the additive bias of key position - query position.
    - "grid": `bias_of_grid()` gives the additive bias [H, T, T] of a grid that is always the same.

    Every layer that uses a scheme clones it from its config, as mechanisms are, so that one object given to two layers
    shares nothing.
    """

    acts_on = None

    def __init__(self, **kwargs):
        # Tables of biases stay in float32, angles are taken there.
        super().__init__(autocast=False, **kwargs)

    @classmethod
    def for_heads(cls, num_heads, causal):
        """The scheme as its name alone asks for it, in a layer of `num_heads` heads, causal or not."""
        return cls(num_heads)

    def check_heads(self, num_heads, head_dim):
        """Raises where the scheme was made for other heads than those of the layer."""
        if self.num_heads != num_heads:
            raise ValueError(
                f"{type(self).__name__}(num_heads={self.num_heads}) was given to attention with {num_heads} heads: "
                f"make it with num_heads={num_heads}."
            )

    def rotate(self, x, positions):
        raise NotImplementedError

    def bias_at(self, distance):
        """int32 [B|1, H|1, ...], key position - query position -> at least float32 [B|1, H, ...]."""
        raise NotImplementedError

    def bias_of_grid(self):
        raise NotImplementedError


class DistanceScheme(PositionScheme):
    """A scheme whose subclass gives `bias_at`, and which is called with two lengths."""

    acts_on = "distance"

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = checks.positive_int("num_heads", num_heads)

    def __call__(self, q_length, k_length=None):
        # Keras takes positional arguments for input tensors only.
        return super().__call__(q_length=q_length, k_length=k_length)

    def call(self, q_length, k_length=None):
        k_length = q_length if k_length is None else k_length
        query = tf.range(q_length) + (k_length - q_length)
        return self.bias_at((tf.range(k_length) - query[:, None])[None, None])[0]


def register(name):
    """Class decorator: makes a scheme known under `name` and to Keras' serialisation."""

    def decorate(cls):
        _REGISTRY[name] = cls
        return keras.saving.register_keras_serializable("keras_attention")(cls)

    return decorate


def names():
    """The names that `positions=` takes, in the order of registration."""
    return list(_REGISTRY)


def get(identifier, num_heads, head_dim, dtype, causal=False):
    """A fresh scheme for one attention layer, or None.

    Args:
        identifier: None, a name, a `PositionScheme`, or its serialised config.
        num_heads, head_dim: of the layer that it is for.
        dtype: that layer's policy.
        causal: whether that layer only looks back, for what a name alone leaves open.
    """
    if identifier is None:
        return None
    if isinstance(identifier, str):
        scheme = checks.one_of("positions", identifier, (None, *_REGISTRY)) and _REGISTRY[identifier]
        scheme = scheme.for_heads(num_heads, causal)
    elif isinstance(identifier, dict):
        scheme = keras.saving.deserialize_keras_object(identifier)
    else:
        scheme = identifier
    if not isinstance(scheme, PositionScheme):
        raise ValueError(
            f"positions must be None, one of {', '.join(map(repr, _REGISTRY))}, a position layer such as "
            f"RotaryEmbedding(), or its config. Got {identifier!r}."
        )
    scheme.check_heads(num_heads, head_dim)
    return type(scheme).from_config({**scheme.get_config(), "dtype": dtype, "name": "positions"})


def name_of(scheme):
    """A scheme as an error shows it: its quoted name, or its class where it has none."""
    return next((repr(name) for name, cls in _REGISTRY.items() if type(scheme) is cls), type(scheme).__name__)


def serialized(identifier):
    """What a config holds for a scheme: an object's own config; names, configs and None as they are."""
    return keras.saving.serialize_keras_object(identifier) if isinstance(identifier, PositionScheme) else identifier
