"""The decoder-only models: one pass, decoding, files, exports and what they refuse."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export import export_onnx, export_saved_model
from keras_attention.generation import continue_greedily
from keras_attention.layers import FeedForward
from keras_attention.mechanisms import LocalAttention
from keras_attention.models import DecoderLM, RetNet
from keras_attention.text import ByteTokenizer

V, E, LAYERS = 23, 12, 2
SIZES = {"d_model": E, "num_heads": 2, "num_layers": LAYERS, "mlp_dim": 20}
MODELS = {
    "softmax": {"num_kv_heads": 1, "tie_output": False},
    "blockwise": {"mechanism": "blockwise", "gated_mlp": True, "activation": "silu", "positions": "rotary"},
    "local": {"mechanism": LocalAttention(radius=3)},
    "linear": {"mechanism": "linear", "positions": "learned", "max_length": 30},
    "retention": {},
}


def made(name, seed=1, **options):
    """A built model whose weights are all different from their start."""
    keras.utils.set_random_seed(seed)
    model = (RetNet if name == "retention" else DecoderLM)(V, **{**SIZES, **MODELS[name], **options})
    model.build()
    for weight in model.trainable_variables:  # biases of zero and scales of one would hide a lost weight
        weight.assign(weight + tf.random.normal(weight.shape, stddev=0.1, dtype=weight.dtype))
    return model


def ids_of(rng, batch, length):
    return rng.integers(1, V, (batch, length)).astype("int32")


every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_the_future_and_padding_have_no_influence(rng, name, policy):
    model = made(name, dtype=policy)
    tolerance = {"float32": 1e-5, "mixed_float16": 2e-2, "mixed_bfloat16": 2e-1}[policy]
    ids = ids_of(rng, 2, 9)
    logits = model(ids)
    assert logits.dtype == tf.float32 and logits.shape == (2, 9, V)
    changed = ids.copy()
    changed[:, 6:] = ids_of(rng, 2, 3)
    np.testing.assert_allclose(model(changed)[:, :6], logits[:, :6], atol=tolerance)
    assert np.abs(model(changed)[:, 6:] - logits[:, 6:]).max() > 3 * tolerance
    for sides in ((0, 4), (3, 0)):
        padded = model(np.pad(ids, [(0, 0), sides]))
        np.testing.assert_allclose(padded[:, sides[0] : sides[0] + 9], logits, atol=tolerance)


@every_model
@pytest.mark.parametrize("max_length", [None, 12])
def test_prefill_and_steps_give_what_one_pass_gives(rng, name, max_length):
    model = made(name)
    ids = ids_of(rng, 2, 10)
    ids[1, :2] = 0  # padded on the left
    want = model(ids)
    state = model.init_state(2, max_length)
    got, state = model.prefill(ids[:, :6], state)
    np.testing.assert_allclose(got[0], want[0, :6], atol=2e-5)
    np.testing.assert_allclose(got[1, 2:], want[1, 2:6], atol=2e-5)
    for t in range(6, 10):
        if t == 8:
            state = model.reorder(state, tf.constant([1, 0, 1]))
            ids, want = ids[[1, 0, 1]], tf.gather(want, [1, 0, 1])
        logits, state = model.step(tf.constant(ids[:, t]), state)
        np.testing.assert_allclose(logits, want[:, t], atol=2e-5)
    assert state["overflow"].numpy().tolist() == [0, 0, 0]


def test_a_model_without_stored_keys_keeps_a_number_whatever_was_asked(rng):
    """RetNet's state does not grow: neither does what the model keeps beside it."""
    model = made("linear")
    ids = ids_of(rng, 2, 6)
    ids[1, :2] = 0
    grown, fixed = model.init_state(2), model.init_state(2, 9)
    for _ in range(2):
        one, grown = model.prefill(ids, grown)
        other, fixed = model.prefill(ids, fixed)
        np.testing.assert_array_equal(one, other)
    assert grown["lengths"].numpy().tolist() == [12, 8] and "valid" not in grown
    assert [x.shape for x in tf.nest.flatten(grown)] == [x.shape for x in tf.nest.flatten(model.init_state(2))]


def test_a_row_that_runs_past_the_end_says_so_and_spoils_no_other(rng):
    model = made("softmax")
    ids = ids_of(rng, 2, 4)
    ids[1, :2] = 0
    _, state = model.prefill(ids, model.init_state(2, 4))
    logits, state = tf.function(model.step)(tf.constant([3, 5]), state)
    assert np.isnan(logits[0]).all() and np.isfinite(logits[1]).all()
    assert state["overflow"].numpy().tolist() == [1, 0] and state["lengths"].numpy().tolist() == [4, 3]
    with pytest.raises(ValueError, match="The decoding state is full: it holds 4 positions and row 0 needs 5"):
        model.step(tf.constant([3, 5]), state)


@pytest.mark.parametrize("fixed_size", [False, True])
def test_a_continuation_is_what_one_pass_would_choose(rng, fixed_size):
    model = made("softmax")
    prompt = ids_of(rng, 3, 5)
    prompt[0, 3:], prompt[1, :2] = 0, 0  # on either side
    result = continue_greedily(model, prompt, max_new_tokens=4, fixed_size=fixed_size)
    for row, tokens in zip(prompt, result.tokens.numpy(), strict=True):
        text = list(row[row > 0])
        for token in tokens:
            logits = np.array(model(np.array([text]))[0, -1])
            logits[0] = -np.inf
            assert token == np.argmax(logits)
            text.append(token)
    with pytest.raises(ValueError, match="Every row of prompt needs a token to start from"):
        continue_greedily(model, np.zeros((1, 3), "int32"), max_new_tokens=1)
    with pytest.raises(ValueError, match=r"prompt must be integer ids of shape \[B, T\]. Got shape \(3,\)"):
        continue_greedily(model, [1, 2, 3], max_new_tokens=1)


@pytest.mark.parametrize("name", ["softmax", "retention"])
def test_unknown_lengths_compiling_and_gradients(rng, name):
    model = made(name, dropout_rate=0.0, remat=True)
    plain = made(name, dropout_rate=0.0)
    ids = ids_of(rng, 2, 8)
    symbolic = model(keras.Input((None,), dtype="int32"))
    assert symbolic.shape == (None, None, V) and symbolic.dtype == "float32"
    traced = tf.function(model, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    compiled = tf.function(model, jit_compile=True)
    for function in (traced, compiled):
        np.testing.assert_allclose(function(tf.constant(ids)), plain(ids), atol=2e-5)

    def gradients(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids, training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    for a, b in zip(gradients(model), gradients(plain), strict=True):
        a, b = (tf.convert_to_tensor(x) for x in (a, b))
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


LOAD = """
import json, sys
import numpy as np, keras
import keras_attention.models
paths, ids = sys.argv[1:-1], np.array(json.loads(sys.argv[-1]), "int32")
print(json.dumps([np.asarray(keras.saving.load_model(path)(ids)).tolist() for path in paths]))
"""


def test_files_give_the_same_models_in_a_new_process(rng, tmp_path):
    ids, want = ids_of(rng, 2, 6), []
    for name in MODELS:
        model = made(name, remat=True)
        model.save(tmp_path / f"{name}.keras")
        want.append(model(ids))
    paths = [str(tmp_path / f"{name}.keras") for name in MODELS]
    command = [sys.executable, "-c", LOAD, *paths, json.dumps(ids.tolist())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for got, expected in zip(json.loads(done.stdout.splitlines()[-1]), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    deeper = DecoderLM(V, **{**SIZES, "num_layers": 3, **MODELS["softmax"]})
    deeper.build()
    with pytest.raises(ValueError, match="holds blocks of 2 layers, the model has 3"):
        deeper.load_weights(tmp_path / "softmax.keras")


@pytest.mark.parametrize("name", ["softmax", pytest.param("retention", marks=pytest.mark.slow)])
def test_exports_hold_prefill_and_decode_step(name, tmp_path):
    pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    precision = "mixed_bfloat16" if name == "softmax" else "float32"
    model = made(name, num_layers=1, dtype=precision)
    # Both compare every signature with Keras, state by state, before they give the folder its name.
    report = export_saved_model(model, tmp_path / "served", max_length=14)
    assert report.signatures == ("decode_step", "prefill", "serving_default")
    served = tf.saved_model.load(report.path).signatures
    ids = np.array([[5, 6, 7]], "int32")
    np.testing.assert_allclose(served["serving_default"](input_ids=tf.constant(ids))["output_0"], model(ids), atol=1e-5)
    state = "layers.0.key" if name == "softmax" else "layers.0.s"
    assert state in served["decode_step"].structured_outputs
    report = export_onnx(model, tmp_path / "onnx", max_length=14)
    assert report.signatures == ("model.onnx", "prefill.onnx", "decode_step.onnx")
    files = json.loads((report.path / "export.json").read_text())["files"]
    assert files["prefill.onnx"]["inputs"] == ["input_ids", "input_lengths"]
    assert files["decode_step.onnx"]["inputs"][0] == "token" and f"past.{state}" in files["decode_step.onnx"]["inputs"]
    assert all(f"present.{state}" in files[f"{step}.onnx"]["outputs"] for step in ("prefill", "decode_step"))


def test_an_export_without_a_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"The decoding state of an export has a fixed size\. Got max_length=None"):
        export_saved_model(made("softmax"), tmp_path / "served")
    assert not (tmp_path / "served").exists()


def test_what_is_refused():
    with pytest.raises(ValueError, match="positions='learned' has a table of max_length rows: give max_length="):
        DecoderLM(V, positions="learned", **SIZES)
    with pytest.raises(ValueError, match="does not support a language model, which may not see the future"):
        DecoderLM(V, mechanism="nystrom", **SIZES)
    with pytest.raises(
        ValueError, match=r"must be one of 'sinusoidal', 'learned', 'none', .*'rotary'\. Got positions="
    ):
        DecoderLM(V, positions="absolute", **SIZES)
    relative = DecoderLM(V, positions="relative", **SIZES)  # one that sees no future needs no buckets for it
    assert not relative.blocks[1].attention.positions.bidirectional
    assert type(relative).from_config(relative.get_config()).get_config()["positions"] == "relative"
    with pytest.raises(ValueError, match=r"batch_size must be an integer of at least 1\. Got batch_size=0"):
        made("softmax").init_state(0)


def test_a_gated_feed_forward_layer_is_its_formula(rng):
    layer = FeedForward(5, activation="silu", gated=True)
    x = rng.normal(size=(2, 3, 4)).astype("float32")
    got = layer(x)
    inner, gate, outer = (
        x @ np.asarray(part.kernel) + np.asarray(part.bias) if part is not layer.outer else part
        for part in (layer.inner, layer.gate, layer.outer)
    )
    hidden = inner / (1 + np.exp(-inner)) * gate
    np.testing.assert_allclose(got, hidden @ np.asarray(outer.kernel) + np.asarray(outer.bias), rtol=1e-4, atol=1e-5)
    assert FeedForward.from_config(layer.get_config()).gated
    plain = sum(np.prod(w.shape) for w in made("softmax").trainable_variables)
    gated = sum(np.prod(w.shape) for w in made("softmax", gated_mlp=True).trainable_variables)
    assert gated - plain == LAYERS * (E * 20 + 20)


def test_bytes_are_ids():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("Aé").tolist() == [69, 0xC3 + 4, 0xA9 + 4]
    data = bytes(range(256))
    assert tokenizer.decode(tokenizer.encode(data)) == data and tokenizer.encode(data).max() == 259
    batch = tokenizer.encode_batch(["ab", b"\x00"])
    assert batch.tolist() == [[2, 101, 102], [2, 4, 0]]
    assert tokenizer.decode(batch[0]) == b"ab"
