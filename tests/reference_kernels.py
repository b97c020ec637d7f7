"""Float64 NumPy loops for the approximations and the recurrences: one query, one key at a time."""

import numpy as np


def allowed(B, T, S, padding_mask=None, causal=False):
    """[B, T, S] booleans, True = may attend; causal is aligned at the last query and the last key."""
    keep = np.ones((B, T, S), bool)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                if padding_mask is not None and not padding_mask[b, s]:
                    keep[b, t, s] = False
                if causal and s > t + S - T:
                    keep[b, t, s] = False
    return keep


def features(name):
    def elu(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    return {"elu": elu, "relu": lambda x: np.maximum(x, 0), "softplus": lambda x: np.log1p(np.exp(x))}[name]


def linear(q, k, v, padding_mask=None, causal=False, feature_map="elu"):
    """q [B,H,T,D], k [B,H,S,D], v [B,H,S,Dv] -> [B,H,T,Dv]: weights phi(q).phi(k) over their sum, query by query."""
    phi = features(feature_map) if isinstance(feature_map, str) else feature_map
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, _), S = q.shape, k.shape[2]
    keep = allowed(B, T, S, padding_mask, causal)
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        for h in range(H):
            for t in range(T):
                total = 0.0
                for s in range(S):
                    if keep[b, t, s]:
                        weight = phi(q[b, h, t]) @ phi(k[b, h, s])
                        out[b, h, t] += weight * v[b, h, s]
                        total += weight
                out[b, h, t] = out[b, h, t] / total if total else 0.0
    return out
