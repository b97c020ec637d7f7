"""Float64 loops for the patterns: who may see whom, written down position by position, and attention over that."""

import itertools
import math

import numpy as np

PRIME = 2**31 - 1


def attention(q, k, v, allowed, scale=None, bias=None):
    """q [B,H,T,D], k [B,H,S,D], v [B,H,S,Dv], allowed, bias broadcastable to [B,H,T,S]; zero rows without a key."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, queries, depth = q.shape
    allowed = np.broadcast_to(allowed, (batch, heads, queries, k.shape[2]))
    bias = np.broadcast_to(0.0 if bias is None else bias, allowed.shape)
    scale = 1 / math.sqrt(depth) if scale is None else scale
    out = np.zeros((batch, heads, queries, v.shape[-1]))
    for b, h, t in itertools.product(range(batch), range(heads), range(queries)):
        keys = np.flatnonzero(allowed[b, h, t])
        if keys.size:
            scores = np.array([scale * float(q[b, h, t] @ k[b, h, s]) + bias[b, h, t, s] for s in keys])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[b, h, t] = sum(w * v[b, h, s] for w, s in zip(weights, keys))
    return out


def local_pattern(queries, keys, radius, causal):
    """[T, S]: within the radius; the last query stands at the last key."""
    allowed = np.zeros((queries, keys), bool)
    for t, s in itertools.product(range(queries), range(keys)):
        ahead = s - (t + keys - queries)
        allowed[t, s] = -radius <= ahead <= (0 if causal else radius)
    return allowed


def longformer_pattern(radius, is_global, valid, causal):
    """[B, 1, T, T] for boolean is_global and valid [B, T]."""
    batch, length = valid.shape
    allowed = np.zeros((batch, 1, length, length), bool)
    for b, t, s in itertools.product(range(batch), range(length), range(length)):
        near = abs(t - s) <= radius
        linked = near or is_global[b, t] or is_global[b, s]
        allowed[b, 0, t, s] = linked and valid[b, s] and not (causal and s > t)
    return allowed


def block_sparse_pattern(block_size, neighbours, valid, causal):
    """[B, 1, T, T]; blocks are counted along the real tokens of each row."""
    batch, length = valid.shape
    allowed = np.zeros((batch, 1, length, length), bool)
    for b in range(batch):
        real = np.flatnonzero(valid[b])
        for (i, t), (j, s) in itertools.product(enumerate(real), enumerate(real)):
            allowed[b, 0, t, s] = abs(i // block_size - j // block_size) <= neighbours and not (causal and j > i)
    return allowed


def bigbird_pattern(block_size, neighbours, num_global, num_random, seed, heads, valid, causal):
    """[B, H, T, T]; blocks are counted along the real tokens of each row."""
    batch, length = valid.shape
    allowed = np.zeros((batch, heads, length, length), bool)
    for b, h in itertools.product(range(batch), range(heads)):
        real = np.flatnonzero(valid[b])
        blocks = -(-len(real) // block_size)
        for i in range(blocks):
            window = set(range(i - neighbours, i + neighbours + 1))
            rest = [j for j in range(blocks) if j not in window and j >= num_global and not (causal and j > i)]
            seen = window | set(range(num_global)) | set(drawn(seed, h, i, rest, num_random))
            for (a, t), (c, s) in itertools.product(enumerate(real), enumerate(real)):
                if a // block_size == i and (c // block_size in seen or i < num_global):
                    allowed[b, h, t, s] = not (causal and c > a)
    return allowed


def random_pattern(num_keys, seed, heads, query_valid, key_valid, causal):
    """[B, H, T, S]; positions are counted along the real tokens of each row; causal: bottom-right aligned."""
    batch, queries = query_valid.shape
    shift = key_valid.shape[1] - queries
    allowed = np.zeros((batch, heads, queries, key_valid.shape[1]), bool)
    for b, h in itertools.product(range(batch), range(heads)):
        keys = np.flatnonzero(key_valid[b])
        for i, t in enumerate(np.flatnonzero(query_valid[b])):
            choices = keys[keys <= t + shift] if causal else keys
            allowed[b, h, t, drawn(seed, h, i, list(choices), num_keys)] = True
    return allowed


def drawn(seed, head, position, choices, count):
    """One of each of `count` equal stretches of `choices`."""
    picks, n = [], len(choices)
    for slot in range(count):
        start, end = slot * n // count, (slot + 1) * n // count
        if end > start:
            picks.append(choices[start + hashed(seed, head, position, slot) % (end - start)])
    return picks


def hashed(seed, *indices):
    x = seed % PRIME
    for index in indices:
        x = (x + index) % PRIME
        for constant in (1013904223, 362437069, 1779033703):
            x = pow(x + constant, 5, PRIME)
    return x


def axial(q, k, v, shape, valid, num_class_tokens=0, scale=None):
    """Last axis first; class tokens see all and are seen in each pass."""
    q, k, out = (np.asarray(x, np.float64) for x in (q, k, v))
    v = out
    n = num_class_tokens
    cells = list(itertools.product(*map(range, shape)))
    length = n + len(cells)
    for axis in reversed(range(len(shape))):
        allowed = np.zeros((length, length), bool)
        for (t, here), (s, there) in itertools.product(enumerate(cells), enumerate(cells)):
            allowed[n + t, n + s] = all(a == b for i, (a, b) in enumerate(zip(here, there)) if i != axis)
        allowed[n:, :n] = True
        values = np.concatenate([v[:, :, :n], out[:, :, n:]], axis=2)
        out = attention(q, k, values, allowed & valid[:, None, None, :], scale)
    first = attention(q[:, :, :n], k, v, valid[:, None, None, :], scale)
    return np.concatenate([first, out[:, :, n:]], axis=2)


# --- as the battery calls them: loops over heads, from the options of a mechanism -----------------------------------


def real(limits, length, batch):
    return np.ones((batch, length), bool) if limits.padding is None else limits.padding


def relu(q, k, v, *, limits, bias, scale, mechanism):
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    keep = limits.keep(*q.shape[:3], k.shape[2])
    bias = np.zeros(keep.shape) if bias is None else np.broadcast_to(bias, keep.shape)
    for b, h, t in np.ndindex(q.shape[:3]):
        keys = [s for s in range(k.shape[2]) if keep[b, h, t, s] and bias[b, h, t, s] != -np.inf]
        for s in keys:
            out[b, h, t] += max(0.0, scale * float(q[b, h, t] @ k[b, h, s]) + bias[b, h, t, s]) / len(keys) * v[b, h, s]
    return out


def local(q, k, v, *, limits, bias, scale, mechanism):
    valid = real(limits, k.shape[2], len(q))
    allowed = local_pattern(q.shape[2], k.shape[2], mechanism.radius, limits.causal) & valid[:, None, None, :]
    return attention(q, k, v, allowed, scale, bias)


def longformer(q, k, v, *, limits, bias, scale, mechanism, q_global, k_global, v_global):
    valid = real(limits, k.shape[2], len(q))
    is_global = valid & (np.cumsum(valid, axis=1) <= mechanism.num_global)
    allowed = longformer_pattern(mechanism.radius, is_global, valid, limits.causal)
    return np.where(
        is_global[:, None, :, None],
        attention(q_global, k_global, v_global, allowed, scale, bias),
        attention(q, k, v, allowed, scale, bias),
    )


def block_sparse(q, k, v, *, limits, bias, scale, mechanism):
    valid = real(limits, k.shape[2], len(q))
    allowed = block_sparse_pattern(mechanism.block_size, mechanism.neighbours, valid, limits.causal)
    return attention(q, k, v, allowed, scale, bias)


def bigbird(q, k, v, *, limits, bias, scale, mechanism):
    m, valid = mechanism, real(limits, k.shape[2], len(q))
    counts = (m.block_size, m.neighbours, m.num_global_blocks, m.num_random_blocks)
    allowed = bigbird_pattern(*counts, m.seed, q.shape[1], valid, limits.causal)
    return attention(q, k, v, allowed, scale, bias)


def random_keys(q, k, v, *, limits, bias, scale, mechanism):
    valid = real(limits, k.shape[2], len(q))
    allowed = random_pattern(mechanism.num_keys, mechanism.seed, q.shape[1], valid, valid, limits.causal)
    return attention(q, k, v, allowed, scale, bias)


def axial_grid(q, k, v, *, limits, bias, scale, mechanism):
    valid = real(limits, k.shape[2], len(q))
    return axial(q, k, v, mechanism.shape, valid, mechanism.num_class_tokens, scale)
