"""Decoders whose state does not grow: in a whole model, and past any length."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.layers import MultiHeadAttention
from keras_attention.models import Transformer

recurrent = pytest.mark.parametrize("mechanism", ["linear", "performer", "retention"])


@recurrent
def test_a_translation_model_decodes_step_by_step_as_in_one_pass(rng, mechanism):
    model = Transformer(
        source_vocab_size=19,
        target_vocab_size=17,
        d_model=12,
        num_heads=3,
        num_encoder_layers=1,
        num_decoder_layers=2,
        mlp_dim=8,
        max_length=16,
        mechanism=mechanism,
    )
    source = rng.integers(4, 19, (3, 7)).astype("int32")
    source[1, 4:] = 0
    target = tf.constant(rng.integers(4, 17, (3, 6)).astype("int32"))
    want = model({"source": source, "target": target})
    for max_length in (None, 10):
        state = model.init_state(tf.constant(source), max_length=max_length)
        logits, state = model.prefill(target[:, :3], state)
        parts = [logits]
        for t in range(3, 6):
            logits, state = model.step(target[:, t], state)
            parts.append(logits[:, None])
        np.testing.assert_allclose(tf.concat(parts, axis=1), want, rtol=1e-4, atol=1e-5)


@recurrent
def test_a_recurrent_state_has_no_end_and_one_size(rng, mechanism):
    layer = MultiHeadAttention(8, 2, mechanism=mechanism)
    x = tf.constant(rng.normal(size=(2, 9, 8)).astype("float32"))
    want = layer(x, use_causal_mask=True)
    empty = layer.init_state(2, max_length=4)
    out, state = layer(x, state=empty)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    assert layer.mechanism.capacity(state) is None
    assert [part.shape for part in tf.nest.flatten(state)] == [part.shape for part in tf.nest.flatten(empty)]


@recurrent
@pytest.mark.parametrize("policy, sums", [("mixed_bfloat16", "float32"), ("float64", "float64")])
def test_a_recurrent_state_starts_in_the_dtype_of_its_sums(rng, mechanism, policy, sums):
    """A loop over steps needs one dtype throughout."""
    layer = MultiHeadAttention(8, 2, mechanism=mechanism, dtype=policy)
    x = tf.constant(rng.normal(size=(2, 5, 8)), layer.compute_dtype)
    empty = layer.init_state(2)
    want = layer(x, use_causal_mask=True)
    out, state = layer(x[:, :3], state=empty)
    rest, last = layer(x[:, 3:], state=state)
    for name, part in empty.items():
        assert part.dtype == state[name].dtype == last[name].dtype == ("int32" if name == "position" else sums)
    tolerance = 1e-12 if policy == "float64" else 5e-2
    got = tf.cast(tf.concat([out, rest], axis=1), tf.float64)
    np.testing.assert_allclose(got, tf.cast(want, tf.float64), rtol=tolerance, atol=tolerance)
