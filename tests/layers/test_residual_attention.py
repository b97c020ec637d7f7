"""Scores carried from layer to layer (`previous_scores=`, `return_raw_scores=`), against loops."""

import cases
import numpy as np
import pytest
import reference
import reference_patterns
import tensorflow as tf

from keras_attention import mechanisms
from keras_attention.layers import MultiHeadAttention

B, T, S, H, K, WIDTH, D_MODEL = 2, 5, 7, 4, 2, 9, 12
LOOPS = {"softmax": reference.softmax, "relu": reference_patterns.relu}


def new_layer(mechanism="softmax", seed=5, **options):
    layer = MultiHeadAttention(**{"d_model": D_MODEL, "num_heads": H, "mechanism": mechanism, **options})
    layer.build((None, None, WIDTH))
    layer.built = True
    rng = np.random.default_rng(seed)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    return layer


def inputs(rng, length=T):
    return rng.normal(size=(B, length, WIDTH)).astype("float32")


def products(layer, v, q=None):
    """Scaled products of queries and keys, [B, H, T, S], one by one."""
    q, k, _ = reference.heads(layer, v, v, v if q is None else q)
    out = np.zeros((*q.shape[:3], k.shape[2]))
    for b, h, t, s in np.ndindex(out.shape):
        out[b, h, t, s] = q[b, h, t] @ k[b, h, s] / (layer.temperature * np.sqrt(layer.head_dim))
    return out


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mechanism", LOOPS)
@pytest.mark.parametrize("kv_heads", [H, K])
@pytest.mark.parametrize("given", [(), ("causal", "padding"), ("free", "bias", "alibi")], ids=str)
def test_adds_the_scores_of_the_layer_before(rng, mechanism, kv_heads, given):
    """Own products and previous scores go on; bias, position bias and masks stay in their layer."""
    positions = "alibi" if "alibi" in given else None
    layer = new_layer(mechanism, num_kv_heads=kv_heads, temperature=1.3, positions=positions)
    x, previous = inputs(rng), rng.normal(size=(B, H, T, T)).astype("float32")
    limits = reference.Limits(
        padding=rng.random((B, T)) < 0.7 if "padding" in given else None,
        free=rng.random((B, H, T, T)) < 0.6 if "free" in given else None,
        causal="causal" in given,
    )
    bias = rng.normal(size=(H, T, T)).astype("float32") if "bias" in given else None
    arguments = {"padding_mask": limits.padding, "mask": limits.free, "bias": bias, "use_causal_mask": limits.causal}
    got, weights, raw = layer(
        x, previous_scores=previous, return_raw_scores=True, return_attention_scores=True, **arguments
    )
    close(raw, products(layer, x) + previous)
    added = previous + (0 if bias is None else bias) + (0 if positions is None else layer.positions(T).numpy())
    want = reference.multi_head_attention(layer, x, limits=limits, bias=added, attend=LOOPS[mechanism])
    close(got, want)
    assert weights.shape == raw.shape and weights.dtype == raw.dtype == tf.float32
    # Returned alone, and without anything that came before.
    close(layer(x, return_raw_scores=True, **arguments)[1], products(layer, x))
    assert np.abs(layer(x, **arguments) - got).max() > 1e-2


def test_works_between_two_sequences_and_with_a_memory(rng):
    layer = new_layer(num_kv_heads=K)
    memory, q = inputs(rng, S), inputs(rng)
    previous = rng.normal(size=(B, H, T, S)).astype("float32")
    options = {"previous_scores": previous, "return_raw_scores": True}
    got, raw = layer(memory, memory, q, **options)
    close(got, reference.multi_head_attention(layer, memory, q=q, bias=previous))
    close(raw, products(layer, memory, q) + previous)
    for one, other in zip(layer(q=q, memory=layer.project_memory(memory), **options), (got, raw), strict=True):
        close(one, other, 1e-6)


@pytest.mark.parametrize("max_length", [None, 9])
def test_decoding_carries_the_scores_of_the_same_tokens(rng, max_length):
    first, second = new_layer(num_kv_heads=K, positions="relative"), new_layer(seed=6, num_kv_heads=K)
    x = inputs(rng, 7)

    def both(x, states=None):
        first_state, second_state = states or (None, None)
        options = {"use_causal_mask": states is None, "return_raw_scores": True}
        _, raw, *new = first(x, state=first_state, **options)
        out, raw, *other = second(x, state=second_state, previous_scores=raw, **options)
        return out, raw, (*new, *other)

    want, all_raw, _ = both(x)
    states, parts = (first.init_state(B, max_length), second.init_state(B, max_length)), []
    for start, size in ((0, 4), (4, 1), (5, 2)):
        out, raw, states = both(x[:, start : start + size], states)
        parts.append(out)
        close(raw[..., : start + size], all_raw[:, :, start : start + size, : start + size])
    close(tf.concat(parts, axis=1), want)
    assert np.abs(want - second(x, use_causal_mask=True)).max() > 1e-2


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_carried_scores_stay_in_float32(rng, policy):
    layer = new_layer(dtype=policy)
    # 2049 is no number of either half precision: its difference to 2048 must arrive.
    previous = np.zeros((B, H, T, T), "float32")
    previous[..., 1], previous[..., 2] = 2049, 2048
    _, weights, raw = layer(inputs(rng), previous_scores=previous, return_attention_scores=True, return_raw_scores=True)
    assert raw.dtype == tf.float32
    own = raw - previous
    want = 1 / (1 + np.exp(own[..., 2] - own[..., 1] - 1))
    np.testing.assert_allclose(tf.cast(weights[..., 1], "float32"), want, atol=2e-2)


def test_gradients_reach_the_layer_before(rng):
    first, second = new_layer(dtype="float64"), new_layer(seed=6, dtype="float64")
    x, upstream = inputs(rng).astype("float64"), rng.normal(size=(B, T, D_MODEL))
    kernel = first.query_projection.kernel
    with tf.GradientTape() as tape:
        raw = first(x, return_raw_scores=True)[1]
        loss = tf.reduce_sum(second(x, previous_scores=raw) * upstream)
    gradient = tape.gradient(loss, kernel.value).numpy()
    direction, start, values = rng.normal(size=kernel.shape), kernel.numpy(), []
    for sign in (1, -1):
        kernel.assign(start + sign * 1e-6 * direction)
        out = reference.multi_head_attention(second, x, bias=products(first, x))
        values.append((out * upstream).sum())
    np.testing.assert_allclose((gradient * direction).sum(), (values[0] - values[1]) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_others_refuse_it(rng, case):
    assert mechanisms.class_of(case.name).supports.residual == (case.name in LOOPS)
    if case.name in LOOPS:
        return
    layer = MultiHeadAttention(8, 2, mechanisms.class_of(case.name)(**case.options), head_dim=4)
    x = inputs(rng, case.length)
    for arguments in ({"return_raw_scores": True}, {"previous_scores": np.zeros((B, 2, case.length, case.length))}):
        message = (
            rf"mechanism='{case.name}' does not support carried scores \(previous_scores=\); use mechanism='softmax'"
        )
        with pytest.raises(ValueError, match=message):
            layer(x, **arguments)


def test_bad_scores_are_refused(rng):
    layer, x = new_layer(), inputs(rng)
    with pytest.raises(
        ValueError, match=r"previous_scores must broadcast to .*\(2, 4, 5, 5\). Got shape \(2, 3, 5, 5\)"
    ):
        layer(x, previous_scores=np.zeros((B, 3, T, T), "float32"))
    rolling = new_layer(mechanisms.SoftmaxAttention("rolling"))
    for arguments in ({"return_raw_scores": True}, {"previous_scores": np.zeros((B, H, T, 3), "float32")}):
        with pytest.raises(ValueError, match="while decoding with cache='rolling'; use cache='full'"):
            rolling(x, state=rolling.init_state(B, 3), **arguments)
