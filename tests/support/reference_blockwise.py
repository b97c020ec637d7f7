"""Float64 NumPy: softmax attention with every option of `blockwise_attention`, and its gradients, row by row."""

import numpy as np


def attention(q, k, v, upstream=None, **options):
    """q [B,H,T,D], k and v [B,K,S,.]; options as `blockwise_attention`'s, `keep` [B,H,T,S] for dropout's mask.

    Returns:
        out [B,H,T,Dv]; with `upstream` also a dict of the gradients of sum(out * upstream) to q, k, v and bias.
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    (B, H, T, D), (_, K, S, _) = q.shape, k.shape
    scale = options.get("scale") or 1 / np.sqrt(D)
    rate = options.get("dropout_rate", 0.0)
    keep = options.get("keep", np.ones((B, H, T, S), bool))
    bias = np.zeros((1, 1, 1, 1)) if options.get("bias") is None else np.asarray(options["bias"]).astype(np.float64)
    whole_bias = np.broadcast_to(bias, (B, H, T, S))
    allowed = allowed_pairs(B, H, T, S, **options) & (whole_bias != -np.inf)

    out = np.zeros((B, H, T, v.shape[-1]))
    dq, dk, dv, dbias = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros((B, H, T, S))
    for b, h, t in np.ndindex(B, H, T):
        group = h // (H // K)
        keys = np.flatnonzero(allowed[b, h, t])
        if not len(keys):
            continue
        scores = np.array([q[b, h, t] @ k[b, group, s] * scale + whole_bias[b, h, t, s] for s in keys])
        share = np.exp(scores - scores.max())
        share /= share.sum()
        kept = keep[b, h, t, keys] / (1 - rate)
        for s, weight in zip(keys, share * kept):
            out[b, h, t] += weight * v[b, group, s]
        if upstream is None:
            continue
        g = np.asarray(upstream)[b, h, t].astype(np.float64)
        dshare = np.array([g @ v[b, group, s] for s in keys]) * kept
        # The Jacobian of softmax as a matrix, not the shortcut that the code under test uses.
        dscores = (np.diag(share) - np.outer(share, share)) @ dshare
        for n, s in enumerate(keys):
            dv[b, group, s] += share[n] * kept[n] * g
            dk[b, group, s] += dscores[n] * scale * q[b, h, t]
            dq[b, h, t] += dscores[n] * scale * k[b, group, s]
            dbias[b, h, t, s] = dscores[n]
    if upstream is None:
        return out
    shorter = (1,) * (4 - bias.ndim) + bias.shape
    axes = tuple(axis for axis in range(4) if shorter[axis] == 1)
    return out, {"q": dq, "k": dk, "v": dv, "bias": dbias.sum(axes, keepdims=True).reshape(bias.shape)}


def allowed_pairs(B, H, T, S, mask=None, padding_mask=None, use_causal_mask=False, query_offset=None, **_):
    allowed = np.ones((B, H, T, S), bool)
    if mask is not None:
        mask = np.asarray(mask)
        allowed &= mask[:, None] if mask.ndim == 3 else mask
    for b, t, s in np.ndindex(B, T, S):
        if padding_mask is not None and not padding_mask[b, s]:
            allowed[b, :, t, s] = False
        if use_causal_mask:
            offset = S - T if query_offset is None else np.broadcast_to(query_offset, B)[b]
            if s > t + offset:
                allowed[b, :, t, s] = False
    return allowed


def keep_mask(seed, B, H, T, S, rate):
    """The dropout mask of `keep_mask.keep_mask`, with Python's integers."""
    low, high = (int(n) % 2**32 for n in seed)
    golden = 0x9E3779B9

    def mixed(x):
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) % 2**32
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) % 2**32
        return x ^ (x >> 16)

    wide = abs(round(rate * 2**16) / 2**16 - rate) > 1e-3 * min(rate, 1 - rate)
    keep = np.zeros((B, H, T, S), bool)
    for b, h, t, s in np.ndindex(keep.shape):
        head, row = (b * H + h) * golden % 2**32, t * golden % 2**32
        first = mixed((mixed(mixed((head + low) % 2**32) ^ high) + row) % 2**32)
        second = mixed(mixed((mixed(head ^ high) + low) % 2**32) ^ row)
        x = ((s if wide else s // 2) * golden + first) % 2**32
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) % 2**32 ^ second
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) % 2**32
        x = x ^ (x >> 16)
        half = x >> 16 * (s % 2) & 0xFFFF
        keep[b, h, t, s] = x >= round(rate * 2**32) if wide else half >= round(rate * 2**16)
    return keep
