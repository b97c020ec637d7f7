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


def linear(q, k, v, padding_mask=None, causal=False, feature_map="elu", turn=lambda x, b, t: x):
    """q [B,H,T,D], k [B,H,S,D], v [B,H,S,Dv] -> [B,H,T,Dv]: weights phi(q).phi(k) over their sum, query by query.

    `turn(features, row, place)` turns one vector of features; the sum of weights is taken without it.
    """
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
                        turned = turn(phi(q[b, h, t]), b, t) @ turn(phi(k[b, h, s]), b, s)
                        out[b, h, t] += turned * v[b, h, s]
                        total += phi(q[b, h, t]) @ phi(k[b, h, s])
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


def positive_features(q, k, v, features, padding_mask=None, causal=False, scale=None, eps=0.0):
    """Random-feature attention: the weight of a pair is the product of exp(w.x - |x|^2 / 2) over all rows w."""
    q, k, v, features = (np.asarray(x, np.float64) for x in (q, k, v, features))
    (B, H, T, D), S = q.shape, k.shape[2]
    keep = allowed(B, T, S, padding_mask, causal)
    out = np.zeros((B, H, T, v.shape[-1]))

    scale = D**-0.5 if scale is None else scale

    def phi(x):
        x = x * scale**0.5
        return np.array([np.exp(w @ x - x @ x / 2) for w in features])

    for b in range(B):
        for h in range(H):
            for t in range(T):
                ours = phi(q[b, h, t])
                ours = ours / ours.max() + eps
                weights = np.array([ours @ (phi(k[b, h, s]) + eps) if keep[b, t, s] else 0.0 for s in range(S)])
                if weights.any():
                    out[b, h, t] = weights @ v[b, h] / weights.sum()
    return out


def nystrom(q, k, v, num_landmarks, padding_mask=None, query_mask=None, kernel=None, scale=None, iterations=None):
    """Landmarks by a walk over the real tokens, one sequence and head at a time.

    The pseudo-inverse is NumPy's; with `iterations` singular values are inverted by so many steps of the iteration.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, D), S = q.shape, k.shape[2]
    scale = D**-0.5 if scale is None else scale
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        keys = [s for s in range(S) if padding_mask is None or padding_mask[b, s]]
        queries = [t for t in range(T) if query_mask is None or query_mask[b, t]]
        for h in range(H):
            q_marks, k_marks = _landmarks(q[b, h, queries], num_landmarks), _landmarks(k[b, h, keys], num_landmarks)
            if not len(q_marks) or not len(k_marks):
                continue
            middle = _softmax_rows(q_marks @ k_marks.T * scale)
            right = _softmax_rows(q_marks @ k[b, h, keys].T * scale) @ v[b, h, keys]
            for t in queries:
                left = _softmax_rows(q[b, h, t][None] @ k_marks.T * scale)
                out[b, h, t] = (left @ _inverse(middle, iterations) @ right)[0]
                if kernel is not None:
                    for i, weights in enumerate(kernel):
                        s = t + i - len(kernel) // 2
                        if s in keys:
                            out[b, h, t] += weights[h] * v[b, h, s]
    return out


def _inverse(a, iterations):
    if iterations is None:
        return np.linalg.pinv(a)
    u, sigma, vt = np.linalg.svd(a, full_matrices=False)
    z = sigma / (abs(a).sum(0).max() * abs(a).sum(1).max())
    for _ in range(iterations):
        z = z * (13 - sigma * z * (15 - sigma * z * (7 - sigma * z))) / 4
    return vt.T @ np.diag(z) @ u.T


def _landmarks(x, num_landmarks):
    count = min(len(x), num_landmarks)
    return np.array([np.mean([row for i, row in enumerate(x) if i * count // len(x) == m], 0) for m in range(count)])


def _softmax_rows(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def linformer(q, k, v, key_rows, value_rows, padding_mask=None, query_mask=None, scale=None):
    """Mixes the real keys and values place by place, then attends to the mixtures."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, D), S = q.shape, k.shape[2]
    scale = D**-0.5 if scale is None else scale
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
                    out[b, h, t] = _softmax_row(q[b, h, t] * scale, keys, values, np.ones(len(keys), bool))
    return out


def lsh(q, v, directions, num_buckets, bucket_size, padding_mask=None, causal=False, scale=None):
    """For each token the union of what it meets in any round, then exact softmax over it."""
    q, v = (np.asarray(x, np.float64) for x in (q, v))
    B, H, T, D = q.shape
    scale = D**-0.5 if scale is None else scale
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
                out[b, h, t] = _softmax_row(q[b, h, t] * scale, keys, v[b, h], keep)
    return out


def retention(q, k, v, decay, padding_mask=None, normalize=False, scale=None, causal=True):
    """decay [H] or [H, Dv]: memory = decay * memory + k v^T at each real token, and at the others nothing.

    Without `causal` also what a second walk from the end has in memory before it reads the token itself.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    B, H, T, D = q.shape
    scale = D**-0.5 if scale is None else scale
    out = np.zeros((B, H, T, v.shape[-1]))
    for b in range(B):
        real = np.ones(T, bool) if padding_mask is None else padding_mask[b]
        for h in range(H):
            memory, total = np.zeros((D, v.shape[-1])), 0.0
            for t in range(T):
                if real[t]:
                    memory = decay[h] * memory + np.outer(k[b, h, t], v[b, h, t])
                    total = decay[h] * total + 1
                out[b, h, t] = scale * q[b, h, t] @ memory
                if normalize:
                    out[b, h, t] = out[b, h, t] / np.where(total > 0, total, 1)
            memory = np.zeros((D, v.shape[-1]))
            for t in reversed(range(T if causal else 0, T)):
                memory = decay[h] * memory if real[t] else memory
                out[b, h, t] += scale * q[b, h, t] @ memory
                if real[t]:
                    memory = memory + np.outer(k[b, h, t], v[b, h, t])
    return out


def rotary(x, padding_mask=None):
    """Pairs of features as complex numbers, turned by the number of real tokens so far times each pair's speed."""
    x = np.asarray(x, np.float64)
    speeds = 10000.0 ** -np.linspace(0, 1, x.shape[-1] // 2)
    out = np.empty_like(x)
    for b in range(len(x)):
        position = 0
        for t in range(x.shape[2]):
            position += padding_mask is None or bool(padding_mask[b, t])
            turned = (x[b, :, t, 0::2] + 1j * x[b, :, t, 1::2]) * np.exp(1j * position * speeds)
            out[b, :, t, 0::2], out[b, :, t, 1::2] = turned.real, turned.imag
    return out


def _number(weight):
    return np.asarray(weight).astype(np.float64)


# The same loops as tests/support/cases.py wants them.


def linear_case(q, k, v, *, limits, bias, scale, mechanism, turn=lambda x, b, t: x):
    return linear(q, k, v, limits.padding, limits.causal, mechanism.feature_map, turn)


def performer_case(q, k, v, *, limits, bias, scale, mechanism):
    features = _number(mechanism.features)
    return positive_features(q, k, v, features, limits.padding, limits.causal, scale, eps=1e-6)


def nystrom_case(q, k, v, *, limits, bias, scale, mechanism):
    both = [m for m in (limits.padding, limits.query_padding) if m is not None]
    queries = np.logical_and.reduce(both) if both else None
    kernel = None if mechanism.kernel is None else _number(mechanism.kernel)
    options = limits.padding, queries, kernel, scale, mechanism.iterations
    return nystrom(q, k, v, mechanism.num_landmarks, *options)


def linformer_case(q, k, v, *, limits, bias, scale, mechanism):
    rows = _number(mechanism.key_rows), _number(mechanism.value_rows)
    return linformer(q, k, v, *rows, limits.padding, limits.query_padding, scale)


def lsh_case(q, k, v, *, limits, bias, scale, mechanism):
    directions = _number(mechanism.directions)
    options = mechanism.num_buckets, mechanism.bucket_size, limits.padding, limits.causal, scale
    return lsh(q, v, directions, *options)


def retention_case(q, k, v, *, limits, bias, scale, mechanism):
    if mechanism.rotary:
        q, k = rotary(q, limits.padding), rotary(k, limits.padding)
    if mechanism.decay == "learned":
        decay = np.exp(-120 / mechanism.chunk_size / (1 + np.exp(-_number(mechanism.decay_logits))))
    else:
        decay = 1 - 2.0 ** -(5.0 + np.arange(q.shape[1]))
    return retention(q, k, v, decay, limits.padding, scale=scale, causal=limits.causal)
