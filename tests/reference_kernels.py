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


def softmax(q, k, v, padding_mask=None, causal=False, scale=None):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, D), S = q.shape, k.shape[2]
    scale = D**-0.5 if scale is None else scale
    keep = allowed(B, T, S, padding_mask, causal)
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        for h in range(H):
            for t in range(T):
                out[b, h, t] = _softmax_row(q[b, h, t] * scale, k[b, h], v[b, h], keep[b, t])
    return out


def _softmax_row(q, keys, values, keep):
    """One query over the kept keys: sum of exp(q.k) v over sum of exp(q.k), zeros without any."""
    if not keep.any():
        return np.zeros(values.shape[-1])
    scores = np.array([q @ key for key in keys[keep]])
    weights = np.exp(scores - scores.max())
    return sum(w * value for w, value in zip(weights, values[keep])) / weights.sum()


def positive_features(q, k, v, features, padding_mask=None, causal=False):
    """Random-feature attention: the weight of a pair is the product of exp(w.x - |x|^2 / 2) over all rows w."""
    q, k, v, features = (np.asarray(x, np.float64) for x in (q, k, v, features))
    (B, H, T, D), S = q.shape, k.shape[2]
    keep = allowed(B, T, S, padding_mask, causal)
    out = np.zeros((B, H, T, v.shape[-1]))

    def phi(x):
        x = x / D**0.25
        return np.array([np.exp(w @ x - x @ x / 2) for w in features])

    for b in range(B):
        for h in range(H):
            for t in range(T):
                weights = np.array([phi(q[b, h, t]) @ phi(k[b, h, s]) if keep[b, t, s] else 0.0 for s in range(S)])
                if weights.any():
                    out[b, h, t] = weights @ v[b, h] / weights.sum()
    return out


def nystrom(q, k, v, num_landmarks, padding_mask=None, query_mask=None, kernel=None):
    """Landmarks by a walk over the real tokens, NumPy's SVD pseudo-inverse, one sequence and head at a time."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, D), S = q.shape, k.shape[2]
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        keys = [s for s in range(S) if padding_mask is None or padding_mask[b, s]]
        queries = [t for t in range(T) if query_mask is None or query_mask[b, t]]
        for h in range(H):
            q_marks, k_marks = _landmarks(q[b, h, queries], num_landmarks), _landmarks(k[b, h, keys], num_landmarks)
            if not len(q_marks) or not len(k_marks):
                continue
            middle = _softmax_rows(q_marks @ k_marks.T / D**0.5)
            right = _softmax_rows(q_marks @ k[b, h, keys].T / D**0.5) @ v[b, h, keys]
            for t in queries:
                left = _softmax_rows(q[b, h, t][None] @ k_marks.T / D**0.5)
                out[b, h, t] = (left @ np.linalg.pinv(middle) @ right)[0]
                if kernel is not None:
                    for i, weights in enumerate(kernel):
                        s = t + i - len(kernel) // 2
                        if s in keys:
                            out[b, h, t] += weights[h] * v[b, h, s]
    return out


def _landmarks(x, num_landmarks):
    count = min(len(x), num_landmarks)
    return np.array([np.mean([row for i, row in enumerate(x) if i * count // len(x) == m], 0) for m in range(count)])


def _softmax_rows(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def linformer(q, k, v, key_rows, value_rows, padding_mask=None, query_mask=None):
    """Mixes the real keys and values place by place, then attends to the mixtures."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, D), S = q.shape, k.shape[2]
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        for h in range(H):
            e, f = (np.asarray(rows, np.float64) for rows in (key_rows, value_rows))
            e, f = (rows[h] if rows.ndim == 3 else rows for rows in (e, f))
            keys, values, place = np.zeros((e.shape[1], D)), np.zeros((f.shape[1], v.shape[-1])), 0
            for s in range(S):
                if padding_mask is None or padding_mask[b, s]:
                    keys += np.outer(e[place], k[b, h, s])
                    values += np.outer(f[place], v[b, h, s])
                    place += 1
            for t in range(T):
                if query_mask is None or query_mask[b, t]:
                    out[b, h, t] = _softmax_row(q[b, h, t] / D**0.5, keys, values, np.ones(len(keys), bool))
    return out


def lsh(q, v, directions, num_buckets, bucket_size, padding_mask=None, causal=False):
    """For each token the union of what it meets in any round, then exact softmax over it."""
    q, v = (np.asarray(x, np.float64) for x in (q, v))
    B, H, T, D = q.shape
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        real = [t for t in range(T) if padding_mask is None or padding_mask[b, t]]
        for h in range(H):
            keys = q[b, h] / np.linalg.norm(q[b, h], axis=-1, keepdims=True)
            met = {t: set() for t in real}
            for rotation in np.asarray(directions, np.float64):
                buckets = {}
                for t in real:
                    along = keys[t] @ rotation
                    name = 0 if num_buckets == 1 else int(np.argmax(np.concatenate([along, -along])))
                    buckets.setdefault(name, []).append(t)
                for members in buckets.values():
                    for i, one in enumerate(members):
                        for j, other in enumerate(members):
                            if abs(i - j) <= bucket_size and (other < one or (other > one and not causal)):
                                met[one].add(other)
            for t in real:
                keep = np.zeros(T, bool)
                keep[list(met[t] or {t})] = True
                out[b, h, t] = _softmax_row(q[b, h, t] / D**0.5, keys, v[b, h], keep)
    return out


def retention(q, k, v, decay, padding_mask=None, normalize=False, scale=None):
    """decay [H] or [H, Dv]: memory = decay * memory + k v^T at each real token, and at the others nothing."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    B, H, T, D = q.shape
    scale = D**-0.5 if scale is None else scale
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        for h in range(H):
            memory, total = np.zeros((D, v.shape[-1])), 0.0
            for t in range(T):
                if padding_mask is None or padding_mask[b, t]:
                    memory = decay[h] * memory + np.outer(k[b, h, t], v[b, h, t])
                    total = decay[h] * total + 1
                out[b, h, t] = scale * q[b, h, t] @ memory
                if normalize:
                    out[b, h, t] = out[b, h, t] / np.where(total > 0, total, 1)
    return out
