"""Losses and metrics whose denominator is the number of real tokens: over batches, epochs and replicas."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import reference_losses
import tensorflow as tf

from keras_attention.training.optimization.losses import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    TokenLoss,
    token_losses,
)

B, T, V = 3, 5, 7


def make_batch(rng, lengths=(5, 2, 0), vocab=V):
    labels = rng.integers(1, vocab, (len(lengths), T))
    for row, length in enumerate(lengths):
        labels[row, length:] = 0
    return labels.astype("int32"), rng.normal(0, 3, (len(lengths), T, vocab)).astype("float32")


def logits_of(probabilities, vocab=4):
    """Logits [1, T, vocab] that give label 1 exactly these probabilities and share the rest equally."""
    rows = [[(1 - p) / (vocab - 1)] * vocab for p in probabilities]
    for row, p in zip(rows, probabilities):
        row[1] = p
    return tf.constant([np.log(rows)], tf.float32)


# ---- public report case 28: p(correct) = .5, .75 on two real steps, then two pads --------------------------------

TWO_STEPS = 0.490415  # (ln 2 + ln 4/3) / 2


@pytest.mark.parametrize("said_by", ["mask", "weights", "ignored id", "all of them"])
def test_two_real_steps_and_two_pads(said_by):
    logits = logits_of([0.5, 0.75, 0.2, 0.9])
    labels = [[1, 1, 0, 0]] if said_by in ("ignored id", "all of them") else [[1, 1, 1, 1]]
    weights = [[1, 1, 0, 0]] if said_by in ("weights", "all of them") else None
    if said_by in ("mask", "all of them"):
        logits._keras_mask = tf.constant([[True, True, False, False]])
    loss = MaskedCrossentropy()(labels, logits, weights)
    assert float(loss) == pytest.approx(TWO_STEPS, abs=1e-6)
    metric = TokenLoss()
    metric.update_state(labels, logits, weights)
    assert float(metric.result()) == pytest.approx(TWO_STEPS, abs=1e-6)


def test_through_keras_with_an_implicit_mask_and_weights_at_once():
    """fit and evaluate hand the mask of the output and the weights to loss and metric; none may count twice."""
    inputs = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(6, 5, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(V)(hidden))
    model.compile(loss=MaskedCrossentropy(), metrics=[TokenLoss()], weighted_metrics=[TokenLoss(name="weighted")])
    ids = np.array([[3, 1, 0, 0], [2, 5, 4, 0]], "int32")
    labels = np.array([[4, 2, 0, 0], [1, 1, 6, 0]], "int32")
    expected = reference_losses.token_mean(labels, model(ids).numpy())
    for weights in (None, (labels != 0).astype("float32")):
        logs = model.evaluate(ids, labels, sample_weight=weights, verbose=0, return_dict=True)
        assert logs["loss"] == pytest.approx(expected, rel=1e-5)
        assert logs["weighted"] == pytest.approx(expected, rel=1e-5)


def token_loss_batches():
    """One batch of four tokens of loss 1, one of a single token of loss 3."""
    return [([[1, 1, 1, 1]], logits_of([np.exp(-1)] * 4)), ([[1, 0, 0, 0]], logits_of([np.exp(-3)] * 4))]


def test_uneven_batches_give_the_token_mean():
    """The second half of public report case 28."""
    metric = TokenLoss()
    for labels, logits in token_loss_batches():
        metric.update_state(labels, logits)
    assert float(metric.result()) == pytest.approx(1.4, abs=1e-5)  # not 2.0, the mean of means


def test_all_padding_is_zero_with_zero_gradients():
    logits = tf.Variable(np.random.default_rng(0).normal(size=(2, 3, V)).astype("float32"))
    with tf.GradientTape() as tape:
        loss = MaskedCrossentropy(label_smoothing=0.1)(np.zeros((2, 3), "int32"), logits)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(tape.gradient(loss, logits), np.zeros((2, 3, V)))
    for metric in (TokenLoss(), MaskedAccuracy()):
        metric.update_state(np.zeros((2, 3), "int32"), logits)
        assert float(metric.result()) == 0.0


# ---- against loops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_id", [0, 4, None])
def test_loss_equals_reference(rng, smoothing, weighted, ignore_id):
    labels, logits = make_batch(rng)
    weights = rng.uniform(0.1, 2, (B, T)).astype("float32") if weighted else None
    expected = reference_losses.token_mean(labels, logits, smoothing, weights, ignore_id)
    loss = MaskedCrossentropy(label_smoothing=smoothing, ignore_id=ignore_id)
    metric = TokenLoss(label_smoothing=smoothing, ignore_id=ignore_id)
    metric.update_state(labels, logits, weights)
    assert float(loss(labels, logits, weights)) == pytest.approx(expected, rel=1e-5)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(B,), (B, 1), (B, T), (B, T, 1)], ids=str)
def test_weights_of_rows_and_of_tokens(rng, shape):
    labels, logits = make_batch(rng)
    weights = rng.uniform(0.1, 2, shape).astype("float32")
    by_token = np.broadcast_to(weights.reshape(B, -1), (B, T))
    expected = reference_losses.token_mean(labels, logits, weights=by_token)
    assert float(MaskedCrossentropy()(labels, logits, weights)) == pytest.approx(expected, rel=1e-5)


def test_gradient_equals_softmax_minus_target_over_the_real_tokens(rng):
    labels, logits = make_batch(rng)
    smoothing = 0.2
    variable = tf.Variable(logits)
    with tf.GradientTape() as tape:
        loss = MaskedCrossentropy(label_smoothing=smoothing)(labels, variable)
    exponentials = np.exp(logits.astype("float64") - logits.max(-1, keepdims=True))
    target = np.eye(V)[labels] * (1 - smoothing) + smoothing / V
    expected = (exponentials / exponentials.sum(-1, keepdims=True) - target) * (labels != 0)[..., None] / 7
    np.testing.assert_allclose(tape.gradient(loss, variable), expected, atol=1e-6)


def test_padding_does_not_move_the_loss_and_its_nan_does_not_leak(rng):
    labels, logits = make_batch(rng, lengths=(3, 2))
    loss = MaskedCrossentropy(label_smoothing=0.1)
    expected = float(loss(labels, logits))
    longer = np.concatenate([logits, np.full((2, 4, V), np.nan, "float32")], axis=1)
    assert float(loss(np.pad(labels, [(0, 0), (0, 4)]), longer)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_summed_in_float32(rng, dtype):
    labels, logits = make_batch(rng, lengths=(5,) * 40)
    halves = tf.cast(logits, dtype)
    loss = MaskedCrossentropy(label_smoothing=0.1)(labels, halves)
    assert loss.dtype == tf.float32
    expected = reference_losses.token_mean(labels, tf.cast(halves, tf.float32).numpy(), 0.1)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_smoothed_losses_and_gradients_of_large_logits(rng, jit):
    """Against loops in float64: logits in the hundreds, each token with a gradient of its own."""
    labels = rng.integers(0, V, (B, T)).astype("int32")
    logits = rng.normal(0, 150, (B, T, V)).astype("float32")
    upstream = rng.normal(size=(B, T)).astype("float32")

    @tf.function(jit_compile=jit, autograph=False)
    def run(labels, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = token_losses(labels, logits, 0.1)
        return losses, tape.gradient(losses, logits, upstream)

    losses, gradients = run(labels, tf.constant(logits))
    for b, t in np.ndindex(B, T):
        want = reference_losses.token_loss(labels[b, t], logits[b, t], 0.1)
        assert float(losses[b, t]) == pytest.approx(want, rel=1e-5)
        share = np.exp(logits[b, t].astype("float64") - logits[b, t].max())
        target = np.full(V, 0.1 / V)
        target[labels[b, t]] += 0.9
        np.testing.assert_allclose(gradients[b, t], upstream[b, t] * (share / share.sum() - target), atol=1e-6)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_a_logit_of_minus_infinity_is_as_if_not_in_the_vocabulary(rng, jit):
    """Case 96: one row without such a logit, one with two, one whose label has it."""
    logits = rng.normal(0, 2, (3, V)).astype("float32")
    labels = np.array([4, 2, 5], "int32")
    logits[1, [0, 6]] = logits[2, 5] = -np.inf

    @tf.function(jit_compile=jit, autograph=False)
    def run(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = token_losses(labels, logits, 0.1)
        return losses, tape.gradient(losses, logits)

    losses, gradients = run(tf.constant(logits))
    rows = [list(range(V)), [1, 2, 3, 4, 5]]
    for row, there in enumerate(rows):
        label = there.index(labels[row])
        want = reference_losses.token_loss(label, logits[row, there], 0.1)
        assert float(losses[row]) == pytest.approx(want, rel=1e-5)
        share = np.exp(logits[row, there].astype("float64"))
        target = np.full(len(there), 0.1 / len(there))
        target[label] += 0.9
        np.testing.assert_allclose(gradients[row].numpy()[there], share / share.sum() - target, atol=1e-6)
    assert not gradients[1].numpy()[[0, 6]].any()
    assert np.isposinf(losses[2])
    assert np.isfinite(MaskedCrossentropy(label_smoothing=0.1)(labels[None, :2], logits[None, :2]))


@pytest.mark.parametrize("spread", [10, 100])
def test_a_smoothed_loss_over_a_large_vocabulary_keeps_its_digits(rng, spread):
    """Case 96: confident rows, whose loss is a small difference of large numbers if it is taken as one."""
    size, smoothing = 30_000, 1e-3
    logits = rng.normal(0, spread, (8, size)).astype("float32")
    labels = rng.integers(0, size, 8).astype("int32")
    logits[np.arange(8), labels] = logits.max(axis=1) + np.linspace(0, 20, 8)
    losses = token_losses(labels, tf.constant(logits), smoothing)
    for row in range(8):
        wide = logits[row].astype("float64")
        own = wide[labels[row]]
        plain = np.log1p(np.exp(np.delete(wide, labels[row]) - own).sum())
        assert float(losses[row]) == pytest.approx(plain + smoothing * (own - wide.mean()), rel=2e-5)


def test_float64_logits_keep_their_digits(rng):
    labels, logits = make_batch(rng)
    logits = logits + rng.normal(0, 1e-9, logits.shape)
    loss = MaskedCrossentropy(label_smoothing=0.1)(labels, logits)
    assert loss.dtype == tf.float64
    assert float(loss) == pytest.approx(reference_losses.token_mean(labels, logits, 0.1), rel=1e-12)
    for metric in (TokenLoss(0.1), Perplexity(), MaskedAccuracy()):
        metric.update_state(labels, logits)
        assert np.isfinite(metric.result())


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_smoothing_makes_no_tensor_of_targets(jit):
    """Beside the logits there is one tensor of their size, the gradient that the kernel returns."""
    specs = [tf.TensorSpec([3], tf.int32), tf.TensorSpec([3, V], tf.float32)]
    graph = tf.function(lambda y, x: token_losses(y, x, 0.1), specs, jit_compile=jit).get_concrete_function().graph
    made = [node.name for node in graph.get_operations() for out in node.outputs if out.shape == (3, V)]
    kinds = {graph.get_operation_by_name(name).type for name in made}
    assert kinds <= {"Placeholder", "Reshape", "Identity", "IdentityN", "SparseSoftmaxCrossEntropyWithLogits"}, kinds


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("label", [-1, V, 90000])
def test_an_id_outside_the_vocabulary_is_not_an_easy_token(rng, smoothing, label):
    labels, logits = make_batch(rng, lengths=(5,))
    labels[0, 2] = label
    losses = token_losses(tf.constant(labels), tf.constant(logits), smoothing).numpy()
    assert np.isnan(losses[0, 2]) and np.isfinite(np.delete(losses[0], 2)).all()
    assert np.isnan(MaskedCrossentropy(smoothing)(labels, logits))


def test_accuracy_ignores_pads_and_perplexity_has_no_smoothing(rng):
    labels, logits = make_batch(rng)
    logits[0, :2] = np.eye(V)[labels[0, :2]] * 20
    accuracy, perplexity = MaskedAccuracy(), Perplexity()
    for rows in (slice(0, 1), slice(1, 3)):  # five tokens, then two
        accuracy.update_state(labels[rows], logits[rows])
        perplexity.update_state(labels[rows], logits[rows])
    real = labels != 0
    assert float(accuracy.result()) == pytest.approx((logits.argmax(-1) == labels)[real].mean())
    assert float(perplexity.result()) == pytest.approx(np.exp(reference_losses.token_mean(labels, logits)), rel=1e-5)
    accuracy.reset_state()
    assert float(accuracy.result()) == 0.0


# ---- several replicas --------------------------------------------------------------------------------------------


def run_two_replicas(what):
    """What run_two_replicas.py found, in a process of its own: two CPU devices need a fresh TensorFlow."""
    command = [sys.executable, Path(__file__).parents[1] / "support" / "run_two_replicas.py", what]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def replicas():
    return run_two_replicas("losses")


@pytest.fixture(scope="module")
def models_on_replicas():
    return run_two_replicas("models")


def test_replicas_with_different_numbers_of_tokens(replicas):
    """Losses 1, 1, 1, 1 on one replica and 3 on the other: 1.4, not 2.0, in value, gradient and metric."""
    assert replicas["loss of two"] == pytest.approx(1.4, abs=1e-5)
    assert replicas["loss of one"] == pytest.approx(1.4, abs=1e-5)
    assert replicas["metric of two"] == pytest.approx(1.4, abs=1e-5)
    assert replicas["gradient of two"] == pytest.approx(replicas["gradient of one"], abs=1e-5)


def test_fit_on_two_replicas_equals_fit_on_one(replicas):
    np.testing.assert_allclose(replicas["weights of two"], replicas["weights of one"], atol=1e-6)
    np.testing.assert_allclose(replicas["history of two"], replicas["history of one"], rtol=1e-5)


@pytest.mark.slow
def test_case_27_translation_on_two_replicas(models_on_replicas):
    """keras#20611: without dropout the weights of one device; dropout runs; XLA's refusal says what it refuses."""
    replicas = models_on_replicas
    (want, want_losses), (got, got_losses) = replicas["translation of one"], replicas["translation of two"]
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(got_losses, want_losses, rtol=1e-5)
    weights, losses = replicas["translation with dropout"]
    assert np.isfinite(losses).all() and np.abs(np.subtract(weights, want)).max() > 1e-3
    # TensorFlow does not let two replicas of one process share a compiled step; should it ever, this is finite losses.
    refusal = replicas["translation under XLA"]
    assert "tfvariable_on_a_different_device" in refusal if isinstance(refusal, str) else np.isfinite(refusal).all()


@pytest.mark.slow
def test_case_91_tables_on_two_replicas_with_keras_adam(models_on_replicas):
    """Rows of a table that both replicas look up are summed before Adam squares them."""
    for (want, _), (got, _) in zip(models_on_replicas["tables of one"], models_on_replicas["tables of two"]):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.slow
def test_pairs_on_two_replicas_are_compared_with_all_pairs(models_on_replicas):
    """CLIP's weights and losses; a text that stands on both replicas is nobody's wrong answer on either."""
    replicas = models_on_replicas
    (want, want_losses, _), (got, got_losses, factor) = replicas["pairs of one"], replicas["pairs of two"]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(got_losses, want_losses, rtol=1e-5)
    assert want_losses[1] != want_losses[0] and factor <= 3.0 + 1e-6


# ---- configs and errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thing",
    [
        MaskedCrossentropy(0.1, ignore_id=3),
        TokenLoss(0.2, ignore_id=None),
        MaskedAccuracy(ignore_id=2),
        Perplexity(ignore_id=5),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_config_round_trip(thing):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(thing))
    assert type(again) is type(thing) and again.get_config() == thing.get_config()


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\). Got 1.0"):
        MaskedCrossentropy(label_smoothing=1.0)
    with pytest.raises(ValueError, match="averages over real tokens only"):
        MaskedCrossentropy(reduction="sum")
    with pytest.raises(ValueError, match=r"labels \[B, T\] and logits \[B, T, V\]"):
        MaskedCrossentropy()(np.zeros((2, 3, 4)), np.zeros((2, 3, 4), "float32"))
