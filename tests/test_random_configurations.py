"""Random configurations of attention layers against float64 loops: what nobody thought of to combine.

    KERAS_ATTENTION_SEED=7 pytest tests/test_random_configurations.py -m slow -s

Configuration `n` of a seed is the same whatever runs before it: `compare(n, seed)` runs one alone.
"""

import math
import os
import types

import cases
import numpy as np
import pytest
import reference
import reference_patterns
import tensorflow as tf
from mechanism_layers import BY_NAME, keep_some, randomize
from reference_positions import bucket, slopes, turned

from keras_attention import mechanisms
from keras_attention.layers import MultiHeadAttention, RelativePositionBias, RotaryEmbedding

SEED = int(os.environ.get("KERAS_ATTENTION_SEED", "11"))
COUNT = 500
# These count blocks or keys along the real tokens of a row, and distances with them.
PACKED = ("bigbird", "block_sparse", "random")
# Relative to the largest number, for the policy that a layer has.
TOLERANCES = {"float64": 1e-9, "float32": 5e-5, "mixed_float16": 2e-2, "mixed_bfloat16": 8e-2}
POLICIES = ["float32"] * 5 + ["float64"] * 2 + ["mixed_float16", "mixed_bfloat16"]

# Options of each mechanism that its loop knows, drawn anew for each configuration.
OPTIONS = {
    "relu": lambda draw: {},
    "softmax": lambda draw: {},
    "blockwise": lambda draw: {"query_block_size": draw(1, 5), "key_block_size": draw(1, 5)},
    "local": lambda draw: {"radius": draw(0, 5)},
    "longformer": lambda draw: {"radius": draw(0, 3), "num_global": draw(1, 4)},
    "bigbird": lambda draw: {
        "block_size": draw(1, 4),
        "neighbours": draw(0, 2),
        "num_global_blocks": draw(0, 2),
        "num_random_blocks": draw(0, 3),
        "seed": draw(0, 99),
    },
    "block_sparse": lambda draw: {"block_size": draw(1, 5), "neighbours": draw(0, 2)},
    "random": lambda draw: {"num_keys": draw(1, 9), "seed": draw(0, 99)},
    "axial": lambda draw: {"shape": [draw(1, 4) for _ in range(draw(2, 3))], "num_class_tokens": draw(0, 2)},
    "linear": lambda draw: {"chunk_size": draw(1, 6), "feature_map": ("elu", "softplus")[draw(0, 1)]},
    "performer": lambda draw: {"num_features": draw(2, 9), "seed": draw(0, 99), "chunk_size": draw(1, 6)},
    "nystrom": lambda draw: {
        "num_landmarks": draw(1, 5),
        "iterations": draw(1, 6),
        "kernel_size": (None, 1, 3)[draw(0, 2)],
    },
    "linformer": lambda draw: {
        "max_length": draw(12, 15),
        "rank": draw(1, 6),
        "sharing": ("heads", "key_value", "none")[draw(0, 2)],
    },
    "lsh": lambda draw: {"num_buckets": (1, 2, 4)[draw(0, 2)], "bucket_size": draw(1, 4), "seed": draw(0, 99)},
    "retention": lambda draw: {"chunk_size": draw(1, 6)},
}


@pytest.mark.slow
def test_random_configurations():
    assert set(OPTIONS) == set(BY_NAME)
    faults = []
    for number in range(COUNT):
        told = ""
        try:
            told, error, allowed = compare(number, SEED)
            if not error <= allowed:  # NaN is a fault too
                faults.append(f"{number}: {told}: off by {error:.2g}, {allowed:.2g} allowed")
        except Exception as error:  # all faults are to be told, and which configuration has them
            faults.append(f"{number}: {type(error).__name__} {' '.join(str(error).split())[:300]}")
    print(f"seed {SEED}: {COUNT} configurations, {len(faults)} mismatches")
    assert not faults, f"seed {SEED}:\n" + "\n".join(faults)


def compare(number, seed):
    """One configuration: what it is, its largest difference from the loop, and what may be."""
    rng = np.random.default_rng([seed, number])
    draw = lambda low, high: int(rng.integers(low, high + 1))  # noqa: E731, as short as its uses want it
    case = cases.CASES[number % len(cases.CASES)]
    supports = mechanisms.class_of(case.name).supports
    options = OPTIONS[case.name](draw)
    with_state = bool(supports.state) and rng.random() < 0.4
    cross = supports.cross and not with_state and rng.random() < 0.3
    schemes = [
        None,
        None,
        *(["rotary"] if supports.rotary else []),
        *(["relative", "alibi"] if supports.relative else []),
    ]
    scheme = None if cross else schemes[draw(0, len(schemes) - 1)]
    heads = draw(1, 5)
    kv_heads = [n for n in range(1, heads + 1) if heads % n == 0]
    policy = POLICIES[draw(0, len(POLICIES) - 1)]
    size = None
    if with_state:
        size = (None, draw(2, 9))[draw(0, 1)]
        if case.name == "softmax" and size and rng.random() < 0.5:
            options["cache"] = "rolling"
    settings = dict(
        num_heads=heads,
        num_kv_heads=kv_heads[draw(0, len(kv_heads) - 1)],
        head_dim=2 * draw(1, 3) if scheme == "rotary" or case.name == "retention" else draw(1, 5),
        temperature=float(rng.uniform(0.5, 2)) if supports.temperature else 1.0,
        use_bias=bool(draw(0, 1)),
    )
    layer = MultiHeadAttention(
        draw(3, 9),
        mechanism=mechanisms.class_of(case.name)(**options),
        positions=_scheme(scheme, settings, draw),
        dtype=policy,
        **settings,
    )
    width = draw(3, 8)
    layer.build((None, None, width))
    randomize(layer)
    batch, length = draw(1, 3), draw(1, 9)
    if case.name == "axial":
        length = options["num_class_tokens"] + math.prod(options["shape"])
    told = f"{case.name} {options} {settings} positions={scheme} {policy} B={batch} T={length}"
    x = _inputs(rng, policy, batch, length, width)
    if with_state:
        told += f" state={size}"
        error, largest = _decoded(rng, layer, case, x, size)
    else:
        memory = _inputs(rng, policy, batch, draw(1, 9), width) if cross else x
        given = _given(rng, supports)
        told += f" S={memory.shape[1]} {'cross ' * cross}{'+'.join(given)}"
        error, largest = _in_one_pass(rng, layer, case, x, memory, given, cross)
    return told, error, TOLERANCES[policy] * max(1.0, largest)


def _scheme(name, settings, draw):
    if name == "rotary":
        return RotaryEmbedding(base=50.0, layout=("half", "interleaved")[draw(0, 1)])
    if name == "relative":
        return RelativePositionBias(settings["num_heads"], 8, 5, bidirectional=bool(draw(0, 1)))
    return name


def _inputs(rng, policy, *shape):
    """Random numbers that the compute dtype holds exactly, as float64."""
    x = rng.normal(size=shape)
    return tf.cast(tf.cast(x, policy.removeprefix("mixed_")), tf.float64).numpy()


def _given(rng, supports):
    """The optional inputs that are given, each with a chance of two in five."""
    known = {
        "query_padding": True,
        "padding": supports.padding_mask,
        "free": supports.free_mask,
        "bias": supports.bias,
        "causal": supports.causal,
    }
    return [name for name, ok in known.items() if ok and rng.random() < 0.4]


def _in_one_pass(rng, layer, case, x, memory, given, cross):
    """`(largest difference, largest number)` of a call without a state."""
    (batch, queries, _), keys, heads = x.shape, memory.shape[1], layer.num_heads
    padding = keep_some(rng, (batch, keys)) if "padding" in given else None
    query_padding = keep_some(rng, (batch, queries)) if "query_padding" in given else None
    free = keep_some(rng, (batch, heads, queries, keys)) if "free" in given else None
    bias = None
    if "bias" in given:
        bias = rng.normal(size=(heads, queries, keys))
        bias[rng.random(bias.shape) < 0.2] = -np.inf
    limits = reference.Limits(padding, query_padding, free, "causal" in given)
    arguments = {"padding_mask": padding, "q_mask": query_padding, "mask": free, "bias": bias}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if limits.causal:
        arguments["use_causal_mask"] = True
    cast = lambda a: tf.cast(a, layer.compute_dtype)  # noqa: E731
    parts = dict(v=cast(memory), k=cast(memory), q=cast(x)) if cross else dict(v=cast(x))
    got = reference.float64(tf.cast(layer(**parts, **arguments), tf.float64))
    want = expected(layer, case, x, memory, limits, bias)
    rows = np.ones((batch, queries), bool)
    if layer.positions is not None and padding is not None:
        rows = padding  # where a token that is none stands is nobody's business
    return np.abs(got - want)[rows].max(initial=0), np.abs(want).max(initial=0)


def _decoded(rng, layer, case, x, size):
    """The same of tokens that are read into a state piece by piece: each row as its real tokens alone."""
    batch, length, _ = x.shape
    keep = rng.random((batch, length)) < 0.7 if rng.random() < 0.6 else np.ones((batch, length), bool)
    rolling = getattr(layer.mechanism, "cache", None) == "rolling"
    most = int(keep.sum(axis=1).max())
    state = layer.init_state(batch, size if rolling or size is None else max(size, most, 1))
    pieces, start = [], 0
    while start < length:
        end = min(length, start + int(rng.integers(1, 5)))
        given = {} if keep[:, start:end].all() and rng.random() < 0.5 else {"padding_mask": keep[:, start:end]}
        out, state = layer(tf.cast(x[:, start:end], layer.compute_dtype), state=state, **given)
        pieces.append(reference.float64(tf.cast(out, tf.float64)))
        start = end
    got = np.concatenate(pieces, axis=1)
    if rolling:
        window = types.SimpleNamespace(radius=size - 1)
        case = types.SimpleNamespace(
            name="local",
            finish=case.finish,
            reference=lambda *parts, mechanism, **rest: reference_patterns.local(*parts, mechanism=window, **rest),
        )
    error = largest = 0.0
    for row in np.flatnonzero(keep.any(axis=1)):
        alone = x[row : row + 1, keep[row]]
        want = expected(layer, case, alone, alone, reference.Limits(causal=True))
        error = max(error, np.abs(got[row, keep[row]] - want[0]).max())
        largest = max(largest, np.abs(want).max())
    return error, largest


def expected(layer, case, x, memory, limits, bias=None):
    """The float64 output of a layer, from the loop of its mechanism on the heads that the layer projects."""
    scheme, heads = layer.positions, layer.num_heads
    cast = lambda a: tf.cast(a, layer.compute_dtype)  # noqa: E731
    *parts, projected = layer.mechanism.project(layer, cast(x), cast(memory), cast(memory))
    q, k, v = (reference.repeat_heads(reference.float64(tf.cast(part, tf.float64)), heads) for part in parts)
    projected = {key: reference.float64(tf.cast(value, tf.float64)) for key, value in projected.items()}
    if scheme is not None:
        places = np.tile(np.arange(x.shape[1]), (len(x), 1))
        if limits.padding is not None and (isinstance(scheme, RotaryEmbedding) or case.name in PACKED):
            places = np.maximum(np.cumsum(limits.padding, axis=1) - 1, 0)
        if not isinstance(scheme, RotaryEmbedding):
            by_distance = _bias_of(scheme, places, heads)
            bias = by_distance if bias is None else by_distance + bias
        else:
            turn = lambda y, b, t: turned(y, places[b, t], scheme.base, layer.head_dim, scheme.layout)  # noqa: E731
            if case.name == "linear":
                projected["turn"] = turn
            else:
                q, k = _all_turned(q, turn), _all_turned(k, turn)
                for key in {"q_global", "k_global"} & set(projected):
                    projected[key] = _all_turned(projected[key], turn)
    scale = 1 / (layer.temperature * math.sqrt(layer.head_dim))
    out = case.reference(q, k, v, limits=limits, bias=bias, scale=scale, mechanism=layer.mechanism, **projected)
    if limits.query_padding is not None:
        out = out * limits.query_padding[:, None, :, None]
    return reference.project(case.finish(layer, reference.join(out), x), layer.output_projection)


def _all_turned(x, turn):
    out = np.empty_like(x)
    for b, h, t in np.ndindex(out.shape[:3]):
        out[b, h, t] = turn(x[b, h, t], b, t)
    return out


def _bias_of(scheme, places, heads):
    """[B, H, T, T] from the formula of ALiBi or of T5's buckets, entry by entry."""
    rows, length = places.shape
    out = np.zeros((rows, heads, length, length))
    for b, h, t, s in np.ndindex(out.shape):
        distance = int(places[b, s] - places[b, t])
        if isinstance(scheme, RelativePositionBias):
            number = bucket(distance, scheme.num_buckets, scheme.max_distance, scheme.bidirectional)
            out[b, h, t, s] = scheme.table.numpy()[number, h]
        else:
            out[b, h, t, s] = -slopes(heads)[h] * abs(distance)
    return out
