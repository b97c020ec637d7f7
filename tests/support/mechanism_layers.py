"""Layers around each mechanism and random inputs for them, as the batteries of mechanisms need both."""

import functools
import itertools

import cases
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention import mechanisms
from keras_attention.layers import MultiHeadAttention

B, T, S, H, K, D = 2, 5, 7, 4, 2, 3  # all different: a swapped axis cannot pass
WIDTHS = {"v": 8, "k": 5, "q": 6}
WIDTH, D_MODEL = 9, 10
BY_NAME = {case.name: case for case in cases.CASES}

every_mechanism = pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)


# Rewriting Python's ifs takes as long as tracing: left to the test that asks for it.
graph_of = functools.partial(tf.function, autograph=False)


def supports(case):
    return mechanisms.class_of(case.name).supports


def new_layer(case, **options):
    options = {"num_heads": H, "head_dim": D, "d_model": D_MODEL, "seed": 3, **case.layer, **options}
    return MultiHeadAttention(mechanism=mechanisms.class_of(case.name)(**case.options), **options)


def randomize(layer, dtype=None):
    """Weights and biases that are all different, exact in `dtype` where one is given."""
    rng = np.random.default_rng(5)
    for w in layer.trainable_variables:
        value = tf.constant(rng.normal(0, 0.5, w.shape), dtype or w.dtype)
        w.assign(tf.cast(value, w.dtype))
    return layer


@functools.cache
def self_layer(name, **options):
    """A built layer for self-attention, shared by tests that do not change it."""
    layer = new_layer(BY_NAME[name], **options)
    layer.build((None, None, WIDTH))
    layer.built = True
    return randomize(layer)


@functools.cache
def cross_layer(name, **options):
    layer = new_layer(BY_NAME[name], **options)
    layer.build(*((None, None, WIDTHS[part]) for part in ("v", "k", "q")))
    layer.built = True
    return randomize(layer)


def sequence(rng, case, batch=B, length=None, width=WIDTH):
    return rng.normal(size=(batch, length or case.length, width)).astype("float32")


def keep_some(rng, shape):
    """A random boolean mask in which everyone keeps something."""
    keep = rng.random(shape) < 0.6
    keep[..., 0] |= ~keep.any(axis=-1)
    return keep


def causal_options(case):
    return {"use_causal_mask": True} if supports(case).causal else {}


def expected(layer, case, v, k=None, q=None, *, limits, bias=None):
    """The float64 output of a layer around `case`'s mechanism."""
    k, q = (v if x is None else x for x in (k, q))
    q_heads, k_heads, v_heads, projected = case.heads(layer, v, k, q)
    scale = 1 / (layer.temperature * np.sqrt(layer.head_dim))
    out = case.reference(
        q_heads, k_heads, v_heads, limits=limits, bias=bias, scale=scale, mechanism=layer.mechanism, **projected
    )
    if limits.query_padding is not None:
        out = out * limits.query_padding[:, None, :, None]
    return reference.project(case.finish(layer, reference.join(out), reference.float64(q)), layer.output_projection)


def subsets(case):
    """No optional input, each alone, each pair, all together."""
    s = supports(case)
    names = ["query_padding"]
    names += [
        name
        for name, ok in (
            ("padding", s.padding_mask),
            ("free", s.free_mask),
            ("bias", s.bias),
            ("causal", s.causal),
            ("temperature", s.temperature),
        )
        if ok
    ]
    return [c for n in sorted({0, 1, 2, len(names)}) for c in itertools.combinations(names, n)]


def options_for(rng, given, queries, keys, heads=H):
    """`(limits, bias, keyword arguments of the layer)` for the optional inputs named in `given`."""
    padding = keep_some(rng, (B, keys)) if "padding" in given else None
    query_padding = keep_some(rng, (B, queries)) if "query_padding" in given else None
    free = keep_some(rng, (B, heads, queries, keys)) if "free" in given else None
    bias = rng.normal(size=(heads, queries, keys)).astype("float32") if "bias" in given else None
    limits = reference.Limits(padding, query_padding, free, "causal" in given)
    arguments = {"padding_mask": padding, "q_mask": query_padding, "mask": free, "bias": bias}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if "causal" in given:
        arguments["use_causal_mask"] = True
    return limits, bias, arguments


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)
