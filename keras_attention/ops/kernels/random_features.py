"""Positive orthogonal random features (FAVOR+): softmax attention in expectation, at linear attention's cost."""

import math

import numpy as np
import tensorflow as tf

from keras_attention.ops.basics import checks
from keras_attention.ops.dense.dot_product import check_qkv
from keras_attention.ops.kernels import linear

# exp of more would overflow the float32 sums over keys. A key feature averages 1; one of exp(60) belongs to scores far
# beyond what random features can approximate.
LARGEST_EXPONENT = 60.0


def orthogonal_features(num_features, depth, seed):
    """Random directions for `positive_features`: orthogonal within each block of `depth` rows.

    Each row has the length distribution of a normal vector, so that every single row is distributed as N(0, I) and the
    estimate stays unbiased, while orthogonality lowers its variance.

    Args:
        num_features: number of rows M.
        depth: head size D.
        seed: int; the same seed gives the same rows everywhere.

    Returns:
        NumPy float32 [M, D].
    """
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(math.ceil(num_features / depth)):
        orthogonal, upper = np.linalg.qr(rng.normal(size=(depth, depth)))
        # The signs of the diagonal make the distribution uniform over rotations; QR alone fixes a sign convention.
        blocks.append(orthogonal.T * np.sign(np.diag(upper))[:, None])
    directions = np.concatenate(blocks)[:num_features]
    lengths = np.linalg.norm(rng.normal(size=(num_features, depth)), axis=1, keepdims=True)
    return (directions * lengths).astype("float32")


def positive_features(x, features, *, is_query, eps=1e-6):
    """exp(w.x - |x|^2 / 2) for each row w of `features`: products of two such vectors average to exp(q.k).

    Args:
        x: [..., T, D], already multiplied by the square root of the scale of the scores.
        features: [M, D].
        is_query: queries are divided by their largest feature, which the normalizer divides out again. Keys cannot be:
            a common factor would depend on all keys, the future's too.
        eps: added to each feature, so that no normalizer is zero.

    Returns:
        [..., T, M].
    """
    # One product of two matrices: faster than one with the features for every head, which TensorFlow 2.21 on a CPU also
    # gets wrong in rank 4, see `dot_product.spread`.
    *leading, depth = checks.sizes(x)
    along = tf.matmul(tf.reshape(x, [-1, depth]), features, transpose_b=True)
    along = tf.reshape(along, [*leading, features.shape[0]])
    exponent = along - tf.reduce_sum(x * x, axis=-1, keepdims=True) / 2
    if is_query:
        exponent -= tf.reduce_max(exponent, axis=-1, keepdims=True)
    return tf.exp(tf.minimum(exponent, LARGEST_EXPONENT)) + eps


def performer_attention(
    q,
    k,
    v,
    features,
    *,
    scale=None,
    padding_mask=None,
    use_causal_mask=False,
    eps=1e-6,
    state=None,
    return_state=False,
    chunk_size=linear.CHUNK,
):
    """An unbiased estimate of softmax attention in time and memory linear in T and S (Performer).

    Cost O((T + S) * M * Dv) for M features. The error of a weight falls as 1 / sqrt(M) and grows fast with the size of
    the scores: for |q| |k| * scale above about 10 no affordable M helps.

    Args:
        q: [..., T, D]; k: [..., S, D]; v: [..., S, Dv].
        features: [M, D] from `orthogonal_features`.
        scale: factor on the scores; 1 / sqrt(D) by default.
        padding_mask, use_causal_mask, state, return_state, chunk_size: as for `linear_attention`; the state is
            {"s": [..., M, Dv], "z": [..., M]}.
        eps: added to each feature.

    Returns:
        [..., T, Dv] in q's dtype, computed in float32 (float64 for float64 inputs); (that, state) with `return_state`.

    Reference: Choromanski et al., 2021, "Rethinking Attention with Performers", https://arxiv.org/abs/2009.14794. Where
    we differ: keys are not divided by their common maximum, which would let the future and padding round the past.
    """
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    check_qkv(q, k, v)
    result = q.dtype
    q, k, v = (linear.accumulated(x) for x in (q, k, v))
    features = tf.cast(features, q.dtype)
    root = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return linear.attend_features(
        positive_features(q * root, features, is_query=True, eps=eps),
        positive_features(k * root, features, is_query=False, eps=eps),
        v,
        key_mask=linear.key_mask(k, padding_mask=padding_mask),
        use_causal_mask=use_causal_mask,
        state=state,
        return_state=return_state,
        chunk_size=chunk_size,
        dtype=result,
    )
