"""Case 96: a float64 layer keeps float64's digits, whatever is added to its scores and wherever its tokens stand."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from mechanism_layers import K, every_mechanism, new_layer, randomize, sequence, supports

from keras_attention.layers import (
    ALiBi,
    GridPositions,
    MultiHeadAttention,
    PositionalEncoding,
    RelativePositionBias2D,
    SinusoidalEncoding,
)
from keras_attention.ops.basics import positions
from keras_attention.ops.vision.contrastive import info_nce

B, T, WIDTH = 2, 7, 6
SLOPES = positions.alibi_slopes(3)  # none of them a float32


def new(**options):
    layer = MultiHeadAttention(12, 3, head_dim=4, dtype="float64", seed=1, **options)
    layer.build((None, None, WIDTH))
    return randomize(layer)


@pytest.mark.parametrize("given", ["bias", "alibi", "both"])
@pytest.mark.parametrize("mechanism", ["softmax", "auto", "blockwise"])
def test_biases_keep_their_digits(rng, mechanism, given):
    if mechanism == "blockwise" and given != "bias":
        pytest.skip("takes no biases by distance, as declared")
    layer = new(mechanism=mechanism, positions=None if given == "bias" else "alibi")
    x = rng.normal(size=(B, T, WIDTH))
    bias = rng.normal(size=(3, T, T))
    total = np.zeros((3, T, T))
    if given != "alibi":
        total = total + bias
    if given != "bias":
        total = total - SLOPES[:, None, None] * np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    got = layer(x, bias=None if given == "alibi" else bias)
    q, k, v, _ = reference.plain_heads(layer, x, x, x)
    out = reference.softmax(q, k, v, limits=reference.Limits(), bias=total)
    assert got.dtype == tf.float64
    np.testing.assert_allclose(got, reference.project(reference.join(out), layer.output_projection), rtol=1e-12)


def test_a_bias_beside_that_of_a_grid_keeps_its_digits(rng):
    layer = new(mechanism="softmax", positions=RelativePositionBias2D((2, 3), 3))
    plain = new(mechanism="softmax")
    plain.set_weights(layer.weights[1:] if layer.weights[0].path.endswith("table") else layer.weights[:-1])
    x, bias = rng.normal(size=(B, 6, WIDTH)), rng.normal(size=(3, 6, 6))
    whole = bias + layer.positions.bias_of_grid().numpy()
    np.testing.assert_allclose(layer(x, bias=bias), plain(x, bias=whole), rtol=1e-12)


def reduced(layer, seed=0):
    """Weights that float32 holds exactly, so that both precisions start alike."""
    rng = np.random.default_rng(seed)
    for w in layer.weights:
        w.assign(rng.normal(0, 0.5, w.shape).astype("float32"))
    return layer


@every_mechanism
def test_all_positions_of_every_mechanism(rng, case):
    """A float32 step anywhere moves float64's result by 1e-8 at least; another number type in no step does not.

    Against the same layer with features in another order: sums in float64 then differ by 1e-15, casts to float32 by
    more, as they round other numbers.
    """
    s = supports(case)
    for scheme in (None, "rotary" if s.rotary else None, "alibi" if s.relative else None):
        layer = new_layer(case, positions=scheme, head_dim=4, num_kv_heads=K, dtype="float64")
        layer.build((None, None, WIDTH))
        reduced(layer)
        order = np.random.default_rng(3).permutation(WIDTH)
        other = new_layer(case, positions=scheme, head_dim=4, num_kv_heads=K, dtype="float64")
        other.build((None, None, WIDTH))
        for own, its in zip(other.weights, layer.weights, strict=True):
            is_input = own.path.endswith("kernel") and own.shape[0] == WIDTH and "output" not in own.path
            own.assign(its.numpy()[order] if is_input else its)
        x = sequence(rng, case, width=WIDTH).astype("float64") * 1.1
        got, want = layer(x), other(x[..., order])
        assert got.dtype == tf.float64
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)


def test_encodings(rng):
    x = rng.normal(size=(B, T, WIDTH))
    places = np.arange(T)[:, None] * 10000.0 ** (-2.0 * (np.arange(WIDTH) // 2) / WIDTH)
    want = x + np.where(np.arange(WIDTH) % 2, np.cos(places), np.sin(places))
    np.testing.assert_allclose(SinusoidalEncoding(dtype="float64")(x), want, rtol=1e-13)
    np.testing.assert_allclose(SinusoidalEncoding(dtype="float64")(x, positions=np.arange(T)), want, rtol=1e-13)

    learned = PositionalEncoding(4, WIDTH, beyond="interpolate", dtype="float64")
    got = learned(x) - x
    table = learned.position_emb.numpy()
    columns = [np.interp(np.linspace(0, 3, T), np.arange(4), column) for column in table.T]
    np.testing.assert_allclose(got, np.stack(columns, axis=1)[None].repeat(B, 0), atol=1e-14)

    grid = GridPositions((2, 3), WIDTH, dtype="float64")
    resized = grid(rng.normal(size=(B, 20, WIDTH)), grid=(4, 5))
    assert resized.dtype == tf.float64

    slopes = ALiBi(3, dtype="float64")(T)
    assert slopes.dtype == tf.float64
    np.testing.assert_allclose(slopes[:, 0, 1], -SLOPES, rtol=1e-15)

    by_offset = RelativePositionBias2D((2, 3), 3, dtype="float64")
    by_offset.table.assign(rng.normal(size=by_offset.table.shape))
    np.testing.assert_allclose(by_offset((3, 4)), by_offset.resized((3, 4))(), atol=1e-14)


def test_resized_tables_are_those_of_float32(rng):
    """Both interpolations, against the same in float32: the precision alone differs."""
    x = np.zeros((1, 20, WIDTH))
    wide, narrow = (GridPositions((2, 3), WIDTH, dtype=dtype) for dtype in ("float64", "float32"))
    for layer in (wide, narrow):
        layer.build()
    wide.position_emb.assign(rng.normal(size=wide.position_emb.shape))
    narrow.position_emb.assign(wide.position_emb)
    difference = np.abs(wide(x, grid=(4, 5)).numpy() - narrow(x, grid=(4, 5)).numpy())
    assert 0 < difference.max() < 1e-5


def test_contrastive_loss(rng):
    image, text = (keras.utils.normalize(rng.normal(size=(5, 4))) for _ in range(2))
    logits = 3.0 * image @ text.T
    losses = [np.log(np.exp(x).sum(axis=1)) - np.diag(x) for x in (logits, logits.T)]
    np.testing.assert_allclose(info_nce(image, text, 3.0), sum(losses) / 2, rtol=1e-13)
