"""Retention's three forms against a float64 recurrence, and the documents' form in the layer."""

import numpy as np
import pytest
import reference
import reference_kernels as loops
import tensorflow as tf
from kernel_checks import DV, B, D, H, S, T, X, assert_gradients, close, gradients, inputs, real_keys

from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import RetentionAttention
from keras_attention.ops.kernels import retention

FORMS = {
    "parallel": retention.retention_parallel,
    "recurrent": lambda *args, **kwargs: retention.retention_recurrent(*args, **kwargs)[0],
    **{
        f"chunks of {size}": lambda *args, size=size, **kwargs: retention.retention_chunkwise(
            *args, chunk_size=size, **kwargs
        )[0]
        for size in (1, 2, 3, 4, 8)
    },
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
DECAYS = {"per_head": (H, 1), "per_channel": (H, DV)}
every_decay = pytest.mark.parametrize("shape", DECAYS.values(), ids=DECAYS)


def log_decays(rng, shape):
    return np.log(rng.uniform(0.2, 0.99, shape))


@every_form
@every_decay
@pytest.mark.parametrize("normalize", [False, True], ids=["sums", "means"])
def test_every_form_equals_the_recurrence(rng, form, shape, normalize):
    q, k, v = inputs(rng, T)
    log_decay = log_decays(rng, shape)
    for keep in (None, real_keys(rng, T)):
        got = form(q, k, v, log_decay, padding_mask=keep, normalize=normalize)
        close(got, loops.retention(q, k, v, np.exp(log_decay), keep, normalize))


@every_form
def test_retention_of_the_public_report(form):
    """torchscale#77: chunks agree past their boundaries, and a padded front neither adds nor fades."""
    log_decay = np.full((1, 1), np.log(0.5))
    want = np.array([[1, 0], [0, 1], [2.25, 2.5], [10.75, -4.75]])
    close(form(X, X, X, log_decay, scale=1.0)[0, 0], want, 1e-6)
    divisors = np.array([1, 1.5, 1.75, 1.875])[:, None]
    close(form(X, X, X, log_decay, scale=1.0, normalize=True)[0, 0], want / divisors, 1e-6)
    padded = np.concatenate([np.full((1, 1, 1, 2), 7, np.float32), X[:, :, :3]], axis=2)
    got = form(padded, padded, padded, log_decay, scale=1.0, padding_mask=np.array([[False, True, True, True]]))
    close(got[0, 0], [[0, 0], [1, 0], [0, 1], [2.25, 2.5]], 1e-6)


@every_form
@every_decay
def test_gradients_of_every_form_equal_the_recurrences(rng, form, shape):
    q, k, v = inputs(rng, S)
    log_decay = log_decays(rng, shape).astype("float32")
    keep, upstream = real_keys(rng, S), rng.normal(size=(B, H, S, DV)).astype("float32")
    assert_gradients(
        lambda q, k, v, a: form(q, k, v, a, padding_mask=keep),
        lambda q, k, v, a: loops.retention(q, k, v, np.exp(a), keep),
        [q, k, v, log_decay],
        upstream,
    )


@every_decay
def test_both_sides_equal_the_loop(rng, shape):
    q, k, v = inputs(rng, T)
    log_decay = log_decays(rng, shape)
    for keep in (None, real_keys(rng, T)):
        got = retention.retention_bidirectional(
            *map(tf.constant, (q, k, v)), log_decay, padding_mask=keep, chunk_size=4
        )
        close(got, loops.retention(q, k, v, np.exp(log_decay), keep, causal=False))


@pytest.mark.parametrize("read", [retention.retention_recurrent, retention.retention_chunkwise])
def test_parts_continue_a_state_as_one_pass(rng, read):
    q, k, v = inputs(rng, T)
    log_decay, keep = log_decays(rng, (H, 1)), real_keys(rng, T)
    want, last = read(q, k, v, log_decay, padding_mask=keep, normalize=True)
    parts, state = [], None
    for start, end in [(0, 4), (4, 9), (9, 10), (10, 11)]:
        part = (x[:, :, start:end] for x in (q, k, v))
        out, state = read(*part, log_decay, padding_mask=keep[:, start:end], normalize=True, state=state)
        parts.append(out)
    close(tf.concat(parts, axis=2), want)
    close(state["s"], last["s"])
    np.testing.assert_array_equal(state["position"], keep.sum(axis=1))


@pytest.mark.parametrize("decays", ["multi_scale", "fastest", "none"])
def test_4096_tokens_stay_finite_and_agree_with_the_recurrence(rng, decays):
    length, chunk = 4096, retention.CHUNK
    q, k, v = (rng.normal(size=(1, H, length, 2)).astype("float32") for _ in range(3))
    log_decay = {
        "multi_scale": retention.multi_scale_log_decay(H),
        "fastest": np.full((H, 2), retention.fastest_log_decay(chunk)),
        "none": np.full((H, 1), -1e-7),
    }[decays]
    got, state = retention.retention_chunkwise(q, k, v, log_decay)
    memory, decay = np.zeros((H, 2, 2)), np.exp(log_decay)
    want = np.empty((H, length, 2))
    for t in range(length):
        memory = memory * decay[:, None, :] + k[0, :, t, :, None].astype(float) * v[0, :, t, None, :]
        want[:, t] = (q[0, :, t, None, :] @ memory)[:, 0] / 2**0.5
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    close(state["s"][0], memory, 1e-3)
    moved = gradients(lambda *x: retention.retention_chunkwise(*x, log_decay)[0], [q, k, v], 1.0)
    assert all(np.isfinite(g).all() for g in moved)


def test_products_of_rotated_vectors_depend_on_the_distance_alone(rng):
    q, k = (rng.normal(size=(1, 1, 1, D)).astype("float32") for _ in range(2))
    at = lambda x, position: retention.rotate(tf.constant(x), tf.constant([[position]]))[0, 0, 0]  # noqa: E731
    product = lambda m, n: float(tf.tensordot(at(q, m), at(k, n), 1))  # noqa: E731
    assert product(5, 2) == pytest.approx(product(103, 100), abs=1e-4)
    assert abs(product(5, 2) - product(5, 4)) > 1e-3
    keep = real_keys(rng, T)
    x = rng.normal(size=(B, H, T, D)).astype("float32")
    close(retention.rotate(tf.constant(x), retention.token_positions(T, keep)), loops.rotary(x, keep))


def test_recurrent_form_compiles_with_its_gradient(rng):
    q, k, v = (tf.constant(x) for x in inputs(rng, S))
    log_decay = log_decays(rng, (H, 1))

    def run(q, k, v):
        out = retention.retention_recurrent(q, k, v, log_decay)[0]
        return tf.gradients(tf.reduce_sum(out**2), [q, k, v])

    want = gradients(lambda *x: FORMS["parallel"](*x, log_decay) ** 2, [q, k, v], 1.0)
    for one, other in zip(tf.function(run, jit_compile=True)(q, k, v), want):
        close(one, other, 1e-4)


# The layer

DOCUMENTS = dict(decay="learned", gate="memory", norm="layer", rotary=False)


def test_documents_form_in_the_layer_equals_its_loop(rng):
    """002, section 6: s = gamma * s + gate * k v^T with gamma for each channel, LayerNorm, no positions."""
    layer = MultiHeadAttention(
        12, 4, head_dim=3, mechanism=RetentionAttention(**DOCUMENTS, chunk_size=4, min_decay=0.02)
    )
    x = rng.normal(size=(B, T, 9)).astype("float32")
    layer(x, use_causal_mask=True)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    q, k, v = reference.heads(layer, x, x, x)
    gate = 1 / (1 + np.exp(-reference.split(reference.project(x, layer.gate_projection), 4)))
    decay = np.exp(np.log(0.02) / (1 + np.exp(-layer.mechanism.decay_logits.numpy().astype(float))))
    out = reference.join(loops.retention(q, k, v * gate, decay))
    out = (out - out.mean(-1, keepdims=True)) / np.sqrt(out.var(-1, keepdims=True) + 1e-6)
    out = out * layer.mechanism.norm_scale.numpy().reshape(-1)
    close(layer(x, use_causal_mask=True), reference.project(out, layer.output_projection), 1e-4)
    parts, state = [], layer.init_state(B)
    for t in range(T):
        step, state = layer(x[:, t : t + 1], state=state)
        parts.append(step)
    close(tf.concat(parts, axis=1), layer(x, use_causal_mask=True), 1e-4)


def test_learned_decays_start_at_the_papers_and_train(rng):
    layer = MultiHeadAttention(8, 4, mechanism=RetentionAttention(**DOCUMENTS))
    x = rng.normal(size=(B, T, 8)).astype("float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x, use_causal_mask=True) ** 2)
    close(tf.exp(layer.mechanism.log_decay()), np.broadcast_to(1 - 2.0 ** -(5.0 + np.arange(4))[:, None], (4, 2)), 1e-6)
    gradient = tape.gradient(loss, layer.mechanism.decay_logits)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


def test_group_norm_and_gate_are_the_papers(rng):
    layer = MultiHeadAttention(8, 2, mechanism="retention")
    x = rng.normal(size=(B, T, 8)).astype("float32")
    layer(x, use_causal_mask=True)
    for w in layer.trainable_variables:
        w.assign(rng.normal(0, 0.5, w.shape))
    q, k, v = reference.heads(layer, x, x, x)
    out = loops.retention(loops.rotary(q), loops.rotary(k), v, 1 - 2.0 ** -np.array([5.0, 6.0]))
    out = (out - out.mean(-1, keepdims=True)) / np.sqrt(out.var(-1, keepdims=True) + 1e-6)
    out = reference.join(out) * layer.mechanism.norm_scale.numpy().reshape(-1)
    gate = reference.project(x, layer.gate_projection)
    want = reference.project(out * gate / (1 + np.exp(-gate)), layer.output_projection)
    close(layer(x, use_causal_mask=True), want, 1e-4)


def test_retention_checks_its_options():
    with pytest.raises(ValueError, match=r"head_dim must be even. Got head_dim=3; .*rotary=False"):
        MultiHeadAttention(6, 2, mechanism="retention")(np.zeros((1, 2, 6), "float32"))
    with pytest.raises(ValueError, match="decay must be one of 'multi_scale', 'learned'"):
        RetentionAttention(decay="fixed")
    with pytest.raises(ValueError, match=r"min_decay bounds learned decays.* Got min_decay=0.5; leave it out or use"):
        RetentionAttention(min_decay=0.5)
    for bound in (0, 31 / 32, -0.1, 1.5):
        with pytest.raises(ValueError, match=rf"min_decay must lie between 0 and 0.96875, .* Got {bound}"):
            RetentionAttention(decay="learned", min_decay=bound)


@pytest.mark.parametrize(
    "options, largest",
    [({}, 3779), ({"decay": "learned"}, 64), ({"decay": "learned", "min_decay": 0.5}, 173)],
    ids=["paper", "learned", "learned from 0.5"],
)
def test_chunks_are_as_large_as_float32_allows(rng, options, largest):
    """And at the largest the numbers still are those of small chunks, with decays that are as fast as can be."""
    x = rng.normal(size=(1, 2 * largest if largest < 200 else largest + 40, 4)).astype("float32")
    outputs = []
    for size in (largest, 16):
        layer = MultiHeadAttention(
            4, 1, mechanism=RetentionAttention(**options, chunk_size=size, rotary=False, gate="memory")
        )
        layer.build((None, None, 4))
        layer.built = True
        for w in layer.trainable_variables:
            w.assign(np.random.default_rng(2).normal(0, 0.5, w.shape) + 20 * w.path.endswith("decay_logits"))
        outputs.append(layer(x, use_causal_mask=True).numpy())
    assert np.isfinite(outputs[0]).all()
    close(outputs[0], outputs[1], 1e-4)
    with pytest.raises(ValueError, match=rf"chunk_size must be at most {largest}, or decays as fast as .* smaller one"):
        RetentionAttention(**options, chunk_size=largest + 1)


@pytest.mark.parametrize(
    "form", [retention.retention_chunkwise, retention.retention_recurrent], ids=["chunks", "steps"]
)
def test_means_of_slow_decays_are_means(form):
    """Case 96: heads 12 to 24 at 20,000 tokens: the mean of ones is one, whose sum head 15 ends at 19,811."""
    length = 20_000 if form is retention.retention_chunkwise else 2_000
    log_decay = retention.multi_scale_log_decay(25)[12:]
    ones = np.ones((1, 13, length, 1), "float32")
    out, _ = form(ones, ones, ones, log_decay, scale=1.0, normalize=True)
    np.testing.assert_allclose(out, ones, rtol=2e-4)
    exact, _ = form(*[ones.astype("float64")] * 3, log_decay, scale=1.0, normalize=True)
    np.testing.assert_allclose(exact, ones, rtol=1e-11)
    # A decay that was rounded to 1 is a plain mean, with a gradient.
    with tf.GradientTape() as tape:
        x = tf.constant(ones)
        tape.watch(x)
        out, _ = form(x, x, x, np.zeros((13, 1)), scale=1.0, normalize=True)
    np.testing.assert_allclose(out, ones, rtol=2e-4)
    assert np.isfinite(tape.gradient(out, x)).all()
