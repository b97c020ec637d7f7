"""LSH attention: each token attends inside its hashed buckets."""

import random

import numpy as np
import tensorflow as tf

from keras_attention.mechanisms.base import Mechanism, Supports, register
from keras_attention.ops.basics import checks
from keras_attention.ops.kernels import lsh


@register("lsh")
class LSHAttention(Mechanism):
    """Reformer's attention: tokens whose directions hash alike meet, q serving as query and key.

    Choose it for long sequences with few strong links that may stand anywhere. Cost O(rounds * T * (num_buckets +
    bucket_size)) and a sort: hashing takes products with num_buckets / 2 directions for every token. A token attends to
    itself only when it meets no other. The hash directions are weights that are saved and not trained, so that a loaded
    model hashes as before. There is no decoding state: use it in encoders, or decode without a cache. With fewer key
    heads than query heads (num_kv_heads) only the values are shared.

    Args:
        num_buckets: 1 or even; about T / bucket_size. Fixed, so that neither padding nor the future changes a bucket.
        bucket_size: how far a token sees inside its bucket, in members, on each side.
        num_hashes: rounds; a link missed in one may be found in another.
        seed: of the directions; None draws one from Python's `random`, which `keras.utils.set_random_seed` sets.

    Reference: Kitaev et al., "Reformer", 2020, https://arxiv.org/abs/2001.04451
    """

    supports = Supports(
        cross=False,
        free_mask=False,
        bias=False,
        scores=False,
        dropout=False,
        grouped=True,
        state=None,
        time="rounds*T*((num_buckets+bucket_size)*D+log(T))",
        memory="rounds*T*(num_buckets+bucket_size)",
        paper="Kitaev et al. 2020, https://arxiv.org/abs/2001.04451",
    )

    def __init__(self, num_buckets=8, bucket_size=64, num_hashes=2, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.num_buckets = checks.positive_int("num_buckets", num_buckets)
        if num_buckets > 1 and num_buckets % 2:
            raise ValueError(
                "num_buckets must be 1 or even: each direction and its opposite make a pair. "
                f"Got num_buckets={num_buckets}; use {num_buckets + 1}."
            )
        self.bucket_size = checks.positive_int("bucket_size", bucket_size)
        self.num_hashes = checks.positive_int("num_hashes", num_hashes)
        self.seed = None if seed is None else checks.nonnegative_int("seed", seed)

    def build_projections(self, owner, q_width, k_width, v_width):
        owner.add_projection("query", q_width, owner.num_heads)
        owner.add_projection("value", v_width, owner.num_kv_heads)

    def build_heads(self, owner):
        seed = random.randrange(2**31) if self.seed is None else self.seed
        directions = lsh.rotations(owner.head_dim, self.num_hashes, self.num_buckets, seed)
        self.directions = self.add_weight(
            name="directions",
            shape=directions.shape,
            initializer=lambda shape, dtype=None: np.asarray(directions),
            dtype="float32",
            trainable=False,
            autocast=False,
        )

    def project(self, owner, q, k, v, training=False):
        heads = owner.split_heads(owner.query_projection(q), owner.num_heads)
        return heads, heads, owner.split_heads(owner.value_projection(v), owner.num_kv_heads), {}

    def attend(self, q, k, v, *, mask, scale, bias=None, dropout=None, return_scores=False, training=False):
        return lsh.lsh_attention(
            q,
            tf.repeat(v, q.shape[1] // v.shape[1], axis=1),
            self.directions,
            num_buckets=self.num_buckets,
            bucket_size=self.bucket_size,
            padding_mask=mask.padding,
            query_mask=mask.query_padding,
            use_causal_mask=mask.causal,
            scale=scale,
        )
