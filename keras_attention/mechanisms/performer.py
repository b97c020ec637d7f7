"""Performer: softmax attention estimated by positive random features."""

import random

import numpy as np

from keras_attention.mechanisms.base import Supports, register
from keras_attention.mechanisms.recurrent import Recurrent
from keras_attention.ops.basics import checks
from keras_attention.ops.kernels import linear, random_features

_MOST_FEATURES = 2**20  # which take minutes to draw; more are a slip of the keyboard


@register("performer")
class PerformerAttention(Recurrent):
    """An estimate of softmax attention in time and memory linear in T and S, with a state of fixed size (FAVOR+).

    Choose it where softmax's sharpness is wanted at linear cost and scores are moderate: the error of a weight falls as
    1 / sqrt(num_features) and grows fast with the size of q and k. The features are weights that are saved and not
    trained; `redraw` draws new ones, which the paper does now and then in training.

    Args:
        num_features: M; the paper advises at least D log D.
        seed: of the features; None draws one from Python's `random`, which `keras.utils.set_random_seed` sets.
        chunk_size: keys per chunk of the causal form.

    Reference: Choromanski et al., "Rethinking Attention with Performers", 2021, https://arxiv.org/abs/2009.14794
    """

    supports = Supports(
        free_mask=False,
        bias=False,
        scores=False,
        dropout=False,
        state="recurrent",
        time="(T+S)*M*D",
        memory="(T+S)*M",
        paper="Choromanski et al. 2021, https://arxiv.org/abs/2009.14794",
    )

    def __init__(self, num_features=256, seed=None, chunk_size=linear.CHUNK, **kwargs):
        super().__init__(**kwargs)
        self.num_features = checks.positive_int("num_features", num_features)
        if self.num_features > _MOST_FEATURES:
            raise ValueError(f"num_features must be at most {_MOST_FEATURES:,}. Got {num_features:,}.")
        self.seed = None if seed is None else checks.nonnegative_int("seed", seed)
        self.chunk_size = checks.positive_int("chunk_size", chunk_size)

    def build_heads(self, owner):
        seed = random.randrange(2**31) if self.seed is None else self.seed
        rows = random_features.orthogonal_features(self.num_features, owner.head_dim, seed)
        self.features = self.add_weight(
            name="features",
            shape=rows.shape,
            initializer=lambda shape, dtype=None: np.asarray(rows),
            dtype="float32",  # exponents of half-precision features would be off by whole numbers
            trainable=False,
            autocast=False,
        )

    def redraw(self, seed):
        """Replaces the features by those of another seed (int). States that were read with the old ones are void."""
        rows = random_features.orthogonal_features(*self.features.shape, checks.nonnegative_int("seed", seed))
        self.features.assign(rows)

    def read(self, q, k, v, *, padding_mask, causal, scale, state):
        result = random_features.performer_attention(
            q,
            k,
            v,
            self.features,
            scale=scale,
            padding_mask=padding_mask,
            use_causal_mask=causal,
            state=state,
            return_state=causal,
            chunk_size=self.chunk_size,
        )
        return result if causal else (result, None)

    def empty_state(self, batch_size, num_heads, head_dim, dtype):
        return linear.empty_state(batch_size, num_heads, self.num_features, head_dim, dtype)
