"""Float64 NumPy loops: softmax attention and the layer around it, one query and one key at a time."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Limits:
    """Who may attend to whom, True = may attend.

    padding [B, S]: real keys. query_padding [B, T]: real queries. free: broadcastable to [B, H, T, S].
    causal: key s is open to query t where s <= t + S - T.
    """

    padding: np.ndarray | None = None
    query_padding: np.ndarray | None = None
    free: np.ndarray | None = None
    causal: bool = False

    def keep(self, B, H, T, S):
        """Boolean [B, H, T, S], filled entry by entry."""
        keep = np.ones((B, H, T, S), bool)
        free = None if self.free is None else np.broadcast_to(self.free, keep.shape)
        for b, h, t, s in np.ndindex(keep.shape):
            if (
                (self.padding is not None and not self.padding[b, s])
                or (self.query_padding is not None and not self.query_padding[b, t])
                or (free is not None and not free[b, h, t, s])
                or (self.causal and s > t + S - T)
            ):
                keep[b, h, t, s] = False
        return keep


def softmax(q, k, v, *, limits=Limits(), bias=None, scale=None, mechanism=None, weights=False):
    """q [B,H,T,D], k [B,H,S,D], v [B,H,S,Dv] -> [B,H,T,Dv] (or the weights [B,H,T,S]); rows without a key are zero."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    B, H, T, D = q.shape
    S = k.shape[2]
    scale = 1 / math.sqrt(D) if scale is None else scale
    keep = limits.keep(B, H, T, S)
    bias = None if bias is None else np.broadcast_to(np.asarray(bias, np.float64), keep.shape)
    share = np.zeros((B, H, T, S))
    out = np.zeros((B, H, T, v.shape[-1]))
    for b, h, t in np.ndindex(B, H, T):
        scores = {}
        for s in range(S):
            added = 0.0 if bias is None else bias[b, h, t, s]
            if keep[b, h, t, s] and added != -np.inf:
                scores[s] = float(q[b, h, t] @ k[b, h, s]) * scale + added
        if scores:
            largest = max(scores.values())
            total = sum(math.exp(x - largest) for x in scores.values())
            for s, x in scores.items():
                share[b, h, t, s] = math.exp(x - largest) / total
                out[b, h, t] += share[b, h, t, s] * v[b, h, s]
    return share if weights else out


def float64(x):
    return np.asarray(x).astype(np.float64)


def project(x, dense):
    """x [B, T, E] through a Keras Dense layer's numbers."""
    out = float64(x) @ float64(dense.kernel)
    return out if dense.bias is None else out + float64(dense.bias)


def split(x, num_heads):
    """[B, T, N*D] -> [B, N, T, D]."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def join(x):
    """[B, N, T, D] -> [B, T, N*D]."""
    B, N, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, N * D)


def repeat_heads(x, num_heads):
    """[B, K, S, D] -> [B, H, S, D]: query head h reads key head h // (H / K)."""
    each = num_heads // x.shape[1]
    return np.stack([x[:, h // each] for h in range(num_heads)], axis=1)


def heads(layer, v, k, q):
    """The head tensors q [B,H,T,D], k [B,H,S,D], v [B,H,S,D] of a MultiHeadAttention with the usual projections."""
    H, K = layer.num_heads, layer.num_kv_heads
    return (
        split(project(q, layer.query_projection), H),
        repeat_heads(split(project(k, layer.key_projection), K), H),
        repeat_heads(split(project(v, layer.value_projection), K), H),
    )


def plain_heads(layer, v, k, q):
    """`heads`, and the dict of what else a mechanism projects: nothing."""
    return *heads(layer, v, k, q), {}


def heads_with_global_ones(layer, v, k, q):
    """The usual heads, and those of longformer's global tokens by kernels of their own."""
    kernels = {"q_global": (q, layer.global_query_projection), "k_global": (k, layer.global_key_projection)}
    kernels["v_global"] = (v, layer.global_value_projection)
    own = {name: split(project(x, dense), layer.num_heads) for name, (x, dense) in kernels.items()}
    return *heads(layer, v, k, q), own


def heads_with_shared_queries(layer, v, k, q):
    """LSH attention's: the keys are the queries."""
    queries = split(project(q, layer.query_projection), layer.num_heads)
    values = split(project(v, layer.value_projection), layer.num_kv_heads)
    return queries, queries, repeat_heads(values, layer.num_heads), {}


def unfinished(layer, joined, q):
    """Nothing stands between attention and the output projection."""
    return joined


def normed_and_gated(layer, joined, q):
    """Retention's way out: each head by itself normalized and scaled, times silu of a gate's projection."""
    scale = float64(layer.mechanism.norm_scale)
    out = split(joined, layer.num_heads)
    for b, h, t in np.ndindex(out.shape[:3]):
        row = out[b, h, t] - out[b, h, t].mean()
        out[b, h, t] = row / math.sqrt((row**2).mean() + layer.mechanism.epsilon) * scale[h]
    gate = project(q, layer.gate_projection)
    return join(out) * gate / (1 + np.exp(-gate))


def multi_head_attention(layer, v, k=None, q=None, *, limits=Limits(), bias=None, attend=softmax):
    """What a MultiHeadAttention with default projections must give, [B, T, d_model], from its weights."""
    k = v if k is None else k
    q = v if q is None else q
    scale = 1 / (layer.temperature * math.sqrt(layer.head_dim))
    attended = attend(*heads(layer, v, k, q), limits=limits, bias=bias, scale=scale, mechanism=layer.mechanism)
    return project(join(attended), layer.output_projection)
