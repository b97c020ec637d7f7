"""Attention whose scores are products of features, so that keys and values can be summed before a query is seen."""

import tensorflow as tf

from keras_attention.ops.basics import checks, masks
from keras_attention.ops.dense.dot_product import accumulation_dtype, check_qkv
from keras_attention.ops.kernels import chunks

CHUNK = 128  # Memory of the causal form is T * CHUNK scores and T / CHUNK sums of D * Dv: both stay near the size of q.


def elu_plus_one(x):
    """x + 1 for x > 0, exp(x) below (Katharopoulos 2020); exp(-20) survives float32 and exp(100) is never taken."""
    return tf.where(x > 0, x + 1, tf.exp(tf.minimum(x, 0)))


FEATURE_MAPS = {"elu": elu_plus_one, "relu": tf.nn.relu, "softplus": tf.nn.softplus}


def feature_map_function(feature_map):
    """The function behind a name of `FEATURE_MAPS`, or the callable itself. Raises ValueError for any other."""
    if callable(feature_map):
        return feature_map
    if feature_map in FEATURE_MAPS:
        return FEATURE_MAPS[feature_map]
    raise ValueError(
        f"feature_map must be one of {sorted(FEATURE_MAPS)} or a function of a tensor [..., D] that returns "
        f"nonnegative features [..., F]. Got {feature_map!r}."
    )


def linear_attention(
    q,
    k,
    v,
    mask=None,
    *,
    padding_mask=None,
    use_causal_mask=False,
    feature_map="elu",
    rotate=None,
    eps=0.0,
    state=None,
    return_state=False,
    chunk_size=CHUNK,
):
    """Attention with weights phi(q).phi(k) / sum phi(q).phi(k), in time and memory linear in T and S.

    Choose it for long sequences where a soft average over all keys is enough: it cannot single out one key as softmax
    can. Cost O((T + S) * D * Dv), and D * Dv numbers of state per step when causal.

    Args:
        q: [..., T, D] queries.
        k: [..., S, D] keys, leading axes as q's.
        v: [..., S, Dv] values.
        mask: boolean, True = may attend: [S], or anything that broadcasts to [..., T, S] with 1 in the place of T,
            such as (B, 1, 1, S). A mask that differs between queries is refused: keys are summed before any query.
        padding_mask: boolean [B, S], True = real key; its axes before the last are the first axes of k.
        use_causal_mask: query t sees the keys up to t + S - T (the last query sees the last key; with S < T the first
            T - S rows are zeros).
        feature_map: "elu" (elu + 1), "relu", "softplus", or a function [..., D] -> [..., F] with values >= 0.
        rotate: None, or a function that turns features [..., T, F] by their positions (RoFormer's form: numerator only,
            so that the normalizer stays a sum of what is not negative).
        eps: added to the normalizer, as in the document's code. 0 because a zero normalizer is handled by a select,
            and a constant biases rows whose features are small.
        state: what an earlier causal call returned: {"s": [..., F, Dv], "z": [..., F]}, the sums over the keys seen.
        return_state: also return the state after the last key. Needs `use_causal_mask`.
        chunk_size: keys per chunk of the causal form.

    Returns:
        [..., T, Dv] in q's dtype, or (that, state) with `return_state`. Features, sums and normalizer are float32
        (float64 for float64 inputs). A row without any key, or whose features are all zero, is zero, with zero
        gradients.

    Raises:
        ValueError: for a mask that cannot be honoured, an unknown feature map, or a state without a causal mask.

    Example:
        >>> q = k = v = tf.random.normal((2, 4, 100, 16))
        >>> linear_attention(q, k, v, use_causal_mask=True).shape
        TensorShape([2, 4, 100, 16])

    Reference: Katharopoulos et al., 2020, "Transformers are RNNs", https://arxiv.org/abs/2006.16236.
    What differs from the document's `linear_attention(Q, K, V)`: there, the einsum "nld,nlv->ldv" sums over the batch
    and keeps the length (it has to sum over the length: "nld,nlv->ndv"), `K.sum(axis=1)` is [n, d] where the next
    einsum reads [l, d], `Z` [n, l] does not broadcast over [n, l, v], and no feature map is applied, so weights may be
    negative and the normalizer may be zero.
    """
    phi = feature_map_function(feature_map)
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    check_qkv(q, k, v)
    result = q.dtype
    q, k, v = (accumulated(x) for x in (q, k, v))
    return attend_features(
        phi(q),
        phi(k),
        v,
        key_mask=key_mask(k, mask, padding_mask),
        use_causal_mask=use_causal_mask,
        rotate=rotate,
        eps=eps,
        state=state,
        return_state=return_state,
        chunk_size=chunk_size,
        dtype=result,
    )


def attend_features(
    q,
    k,
    v,
    *,
    key_mask=None,
    use_causal_mask=False,
    rotate=None,
    eps=0.0,
    state=None,
    return_state=False,
    chunk_size=CHUNK,
    dtype=None,
):
    """The sums of linear attention over nonnegative features: q [..., T, F], k [..., S, F], v [..., S, Dv].

    key_mask broadcasts to [..., S]; the other arguments and the result are those of `linear_attention`.
    """
    if (state is not None or return_state) and not use_causal_mask:
        raise ValueError("A state of linear attention is the sum over earlier keys: it needs use_causal_mask=True.")
    if key_mask is not None:
        # By select and on v too: a NaN in a padded place times zero would still be NaN.
        keep = key_mask[..., None]
        k, v = tf.where(keep, k, tf.zeros_like(k)), tf.where(keep, v, tf.zeros_like(v))
    if use_causal_mask:
        numerator, normalizer, state = _causal(q, k, v, state, chunk_size, rotate)
    else:
        turned_q, turned_k = (q, k) if rotate is None else (rotate(q), rotate(k))
        numerator = tf.matmul(turned_q, tf.matmul(turned_k, v, transpose_a=True))  # [..., T, F] [..., F, Dv]
        normalizer = _dot(q, tf.reduce_sum(k, axis=-2))
    out = tf.cast(divide_or_zero(numerator, normalizer + eps), dtype or q.dtype)
    return (out, state) if return_state else out


def empty_state(batch_size, num_heads, num_features, value_depth, dtype=tf.float32):
    """The state before any key."""
    return {
        "s": tf.zeros([batch_size, num_heads, num_features, value_depth], dtype),
        "z": tf.zeros([batch_size, num_heads, num_features], dtype),
    }


def divide_or_zero(numerator, normalizer):
    """numerator [..., T, Dv] / normalizer [..., T]; zero, with zero gradient, where the normalizer is zero."""
    some = tf.abs(normalizer) > normalizer.dtype.as_numpy_dtype(1.2e-38)  # the smallest normal float32
    # Selected before the division as well as after it: the gradient of x / 0 is NaN even where it is not used.
    safe = tf.where(some, normalizer, tf.ones_like(normalizer))[..., None]
    return tf.where(some[..., None], numerator / safe, tf.zeros_like(numerator))


def accumulated(x):
    """x in the dtype that sums are taken in: float64 stays, everything else becomes float32."""
    return tf.cast(x, accumulation_dtype(x.dtype))


def key_mask(k, mask=None, padding_mask=None):
    """One boolean mask that broadcasts to [..., S] (k without its last axis) from both arguments, or None."""
    keep = None
    if mask is not None:
        mask = masks.as_boolean(mask)
        rank = mask.shape.rank
        if rank > 1 and (rank > k.shape.rank or mask.shape[-2] != 1):
            raise ValueError(
                "linear attention cannot honour a mask that differs between queries: it sums the keys before it sees a "
                f"query. Got a mask of shape {mask.shape}; pass (..., 1, S), padding_mask= [B, S] or "
                'use_causal_mask=True, or choose mechanism="softmax", which takes any mask.'
            )
        keep = mask if rank == 1 else tf.squeeze(mask, axis=-2)
    if padding_mask is not None:
        padding_mask = masks.as_boolean(padding_mask, "padding_mask")
        missing = k.shape.rank - 1 - padding_mask.shape.rank
        if missing < 0 or padding_mask.shape.rank < 1:
            raise ValueError(
                f"padding_mask must be [B, S] for keys of shape {k.shape}. Got shape {padding_mask.shape}."
            )
        for _ in range(missing):
            padding_mask = tf.expand_dims(padding_mask, -2)  # [B, S] -> [B, 1, S] beside [B, H, S]
        keep = masks.joined(keep, padding_mask)
    return keep


def _causal(q, k, v, state, chunk_size, rotate):
    """Numerator [..., T, Dv], normalizer [..., T] and the new state.

    Within a chunk the scores are dense (chunk x chunk); what lies before it is a running sum of keys and values.
    """
    length, keys = checks.sizes(q)[-2], checks.sizes(k)[-2]
    static = isinstance(length, int) and isinstance(keys, int)
    padded = max(length, keys) if static else tf.maximum(length, keys)
    turned = (q, k) if rotate is None else (rotate(q), rotate(k))
    # Zeros in front align the last query with the last key: as keys they add nothing, as queries they are cut off.
    q, k, v, *turned = (chunks.pad(x, padded - checks.sizes(x)[-2], front=True) for x in (q, k, v, *turned))
    q, k, v, *turned = (chunks.split(x, chunks.size_for(padded, chunk_size)) for x in (q, k, v, *turned))
    turned_q, turned_k = turned  # [..., N, C, F]
    scores = turned_scores = _past_scores(q, k)
    if rotate is not None:
        turned_scores = _past_scores(turned_q, turned_k)
    s, z = tf.matmul(turned_k, v, transpose_a=True), tf.reduce_sum(k, axis=-2)  # [..., N, F, Dv], [..., N, F]
    s_before, z_before = tf.cumsum(s, axis=-3, exclusive=True), tf.cumsum(z, axis=-2, exclusive=True)
    s_after, z_after = tf.reduce_sum(s, axis=-3), tf.reduce_sum(z, axis=-2)
    if state is not None:
        s_seen, z_seen = tf.cast(state["s"], s.dtype), tf.cast(state["z"], z.dtype)
        s_before, z_before = s_before + s_seen[..., None, :, :], z_before + z_seen[..., None, :]
        s_after, z_after = s_after + s_seen, z_after + z_seen
    numerator = tf.matmul(turned_scores, v) + tf.matmul(turned_q, s_before)
    normalizer = tf.reduce_sum(scores, axis=-1) + _dot(q, z_before)
    numerator = chunks.join(numerator, padded)[..., padded - length :, :]
    normalizer = chunks.join(normalizer[..., None], padded)[..., padded - length :, 0]
    return numerator, normalizer, {"s": s_after, "z": z_after}


def _past_scores(q, k):
    """q k^T with the future set to zero: [..., N, C, C]."""
    return tf.linalg.band_part(tf.matmul(q, k, transpose_b=True), -1, 0)


def _dot(q, z):
    """[..., T, F] and [..., F] -> [..., T]"""
    return tf.squeeze(tf.matmul(q, z[..., None]), axis=-1)
