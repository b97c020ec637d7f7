"""Dtypes, dropout and files that went wrong elsewhere, for every layer of ours."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_attention import MultiHeadAttention, PositionalEncoding
from keras_attention.layers import DecoderBlock, EncoderBlock, FeedForward, Residual, SinusoidalEncoding, TokenEmbedding
from keras_attention.models import Transformer

POLICIES = ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64"]
RELATIVE = {"float16": 5e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-9}
D_MODEL = 8


def attention(**kwargs):
    return MultiHeadAttention(D_MODEL, 4, num_kv_heads=2, dropout_rate=0.1, **kwargs)


def transformer(**kwargs):
    sizes = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "mlp_dim": 12}
    return Transformer(13, 11, **{**sizes, "max_length": 9, "positions": "learned", "seed": 1, **kwargs})


def cached_attention(layer, x):
    _, state = layer(x[:, :2], state=layer.init_state(len(x), 6))
    return layer(x[:, 2:], state=state)[0]


def with_scores(layer, x):
    keep = tf.constant([[True] * 5, [True, True, False, True, False]])
    return layer(x, padding_mask=keep, bias=np.ones((5, 5), "float32"), return_attention_scores=True)[0]


def memory_of(layer, x):
    if not layer.built:
        layer.build(x.shape)
    return layer(x, layer.project_memory(x, np.array([[True] * 5, [True, False, True, True, True]])))


# name -> (layer, call of a [2, 5, 8] input)
LAYERS = {
    "attention": (attention, lambda layer, x: layer(x, use_causal_mask=True)),
    "attention with mask, bias and scores": (attention, with_scores),
    "attention with a state": (attention, cached_attention),
    "learned positions": (lambda **kw: PositionalEncoding(7, D_MODEL, **kw), lambda layer, x: layer(x)),
    "interpolated positions": (
        lambda **kw: PositionalEncoding(3, D_MODEL, beyond="interpolate", **kw),
        lambda layer, x: layer(x),
    ),
    "sinusoidal positions": (SinusoidalEncoding, lambda layer, x: layer(x)),
    "feed-forward": (lambda **kw: FeedForward(12, **kw), lambda layer, x: layer(x)),
    "gated residual": (lambda **kw: Residual(residual="gated", norm="post", **kw), lambda layer, x: layer(x, x)),
    "encoder block": (
        lambda **kw: EncoderBlock(D_MODEL, 2, 12, residual="gated", **kw),
        lambda layer, x: layer(x, bias=np.zeros((5, 5), "float32")),
    ),
    "decoder block": (lambda **kw: DecoderBlock(D_MODEL, 2, 12, norm="post", **kw), lambda layer, x: layer(x, x)),
    "decoder block with a memory": (lambda **kw: DecoderBlock(D_MODEL, 2, 12, **kw), memory_of),
}


def all_layers(layer):
    return list(layer._flatten_layers())


def close(got, want, tolerance):
    got, want = (np.asarray(tf.cast(x, tf.float64)) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max()))


# --- 25 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_case_25_every_layer_computes_in_its_policy(rng, policy, subtests):
    """tensorflow#46064: against the same layer in float64 on the numbers as this policy rounds them."""
    policy = keras.DTypePolicy(policy)
    x = tf.cast(tf.constant(rng.normal(size=(2, 5, D_MODEL))), policy.compute_dtype)
    for name, (make, call) in LAYERS.items():
        with subtests.test(name):
            layer = make(dtype=policy)
            out = call(layer, x)
            assert out.dtype == policy.compute_dtype and np.isfinite(tf.cast(out, tf.float32)).all()
            assert all(w.dtype == policy.variable_dtype for w in layer.trainable_variables)
            assert {part.dtype_policy.name for part in all_layers(layer)} == {policy.name}
            # Rounded weights in both, with the small scale that they have after training.
            values = [rng.normal(0, 0.4, w.shape) for w in layer.trainable_variables]
            for w, value in zip(layer.trainable_variables, values):
                w.assign(tf.cast(tf.cast(tf.constant(value), policy.compute_dtype), w.dtype))
            exact = make(dtype="float64")
            call(exact, tf.cast(x, tf.float64))
            exact.set_weights([np.asarray(tf.cast(w.value, tf.float64)) for w in layer.weights])
            close(call(layer, x), call(exact, tf.cast(x, tf.float64)), RELATIVE[policy.compute_dtype])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.cast(call(layer, x), tf.float32)))
            optimizer = keras.optimizers.SGD(0.1)
            weights = layer.trainable_variables
            gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
            assert all(np.isfinite(tf.cast(tf.convert_to_tensor(g), tf.float32)).all() for g in gradients)
            if weights:
                optimizer.apply_gradients(zip(gradients, weights))


def test_case_25_long_sequences_of_large_numbers_in_half(rng):
    """The reporter's sizes: 64 tokens of N(0, 6), 16 features; scores reach the hundreds."""
    x = rng.normal(0, 6, (1, 64, 16))
    for dtype in ("float16", "bfloat16"):
        layer = MultiHeadAttention(16, 2, use_bias=False, kernel_initializer="identity", dtype=f"mixed_{dtype}")
        rounded = tf.cast(tf.constant(x), dtype)
        got = layer(rounded)
        want = reference.multi_head_attention(layer, tf.cast(rounded, tf.float64).numpy())
        relative = np.abs(tf.cast(got, tf.float64) - want).max() / np.abs(want).max()
        assert relative < RELATIVE[dtype]


@pytest.mark.parametrize("policy", POLICIES)
def test_case_25_the_model_keeps_float32_logits_and_trains(rng, policy):
    model = transformer(dtype=policy)
    batch = {"source": rng.integers(1, 13, (2, 5)), "target": rng.integers(1, 11, (2, 4))}
    batch["source"][1, 3:] = 0
    logits = model(batch)
    assert logits.dtype == "float32"
    assert {part.dtype_policy.name for part in all_layers(model)} == {policy}
    reference_model = transformer(dtype="float64")
    reference_model.build()
    reference_model.set_weights([np.asarray(tf.cast(w.value, tf.float64)) for w in model.weights])
    want = reference_model(batch)
    tolerance = {"float64": 1e-6}.get(policy, 0.1 if "bfloat16" in policy else 0.015)
    close(logits, want, tolerance)
    _, state = model.prefill(tf.constant(batch["target"]), model.init_state(tf.constant(batch["source"]), 6))
    step, _ = model.step(tf.constant([3, 4]), state)
    assert step.dtype == "float32" and np.isfinite(step).all()


# --- 26 ------------------------------------------------------------------------------------------------------------

CHILD = """
import json, sys
from pathlib import Path
import numpy as np
import keras
import keras_attention.models
folder, policy = Path(sys.argv[1]), sys.argv[2]
keras.config.set_dtype_policy(policy)
inputs = {path.stem: np.load(path, allow_pickle=True).item() for path in folder.glob("*.npy")}
out, policies = {}, {}
for name, value in inputs.items():
    model = keras.models.load_model(folder / f"{name}.keras")
    result = model(value["x"])
    out[name] = np.asarray(result).astype("float64")
    # Keras' own containers keep no policy.
    parts = [p for p in model._flatten_layers() if type(p).__name__ not in ("Functional", "Sequential", "InputLayer")]
    policies[name] = [result.dtype.name, *sorted({part.dtype_policy.name for part in parts})]
np.savez(folder / "out.npz", **out)
(folder / "policies.json").write_text(json.dumps(policies))
"""


@keras.saving.register_keras_serializable("test_precision")
class Containers(keras.Model):
    """Blocks in a list, a list of lists, a list of dicts and a tuple."""

    def __init__(self, blocks=2, **kwargs):
        super().__init__(**kwargs)
        self.blocks = blocks
        self.plain = [EncoderBlock(8, 2, 12, dtype=self.dtype_policy, name=f"plain_{i}") for i in range(blocks)]
        self.nested = [[attention(dtype=self.dtype_policy, name=f"nested_{i}")] for i in range(blocks)]
        self.named = [{"ff": FeedForward(12, dtype=self.dtype_policy, name=f"named_{i}")} for i in range(blocks)]
        self.pair = (PositionalEncoding(9, 8, dtype=self.dtype_policy), TokenEmbedding(9, 8, dtype=self.dtype_policy))

    def call(self, ids, training=False):
        x = self.pair[0](self.pair[1](ids))
        for block, (layer,), parts in zip(self.plain, self.nested, self.named):
            x = parts["ff"](layer(block(x), use_causal_mask=True))
        return x

    def get_config(self):
        return {**super().get_config(), "blocks": self.blocks}


def functional(make, call, width=D_MODEL, policy=None):
    inputs = keras.Input((5, width), dtype="float32")
    return keras.Model(inputs, call(make(**({"dtype": policy} if policy else {})), inputs))


def test_case_26_and_36_files_give_the_same_layers_in_a_new_process(rng, tmp_path):
    """keras#17362: policies of parts, saved under one global policy and loaded under another; nested containers."""
    want, policies = {}, {}

    def keep(name, model, x):
        result = model(x)
        for w in model.trainable_variables:
            w.assign(w + rng.normal(0, 0.1, w.shape))
        result = model(x)
        want[name] = np.asarray(tf.cast(result, tf.float64))
        own = [p for p in all_layers(model) if type(p).__name__ not in ("Functional", "Sequential", "InputLayer")]
        policies[name] = [result.dtype.name, *sorted({part.dtype_policy.name for part in own})]
        model.save(tmp_path / f"{name}.keras")
        np.save(tmp_path / f"{name}.npy", {"x": x}, allow_pickle=True)

    x = rng.normal(size=(2, 5, D_MODEL)).astype("float32")
    ids = np.array([[3, 4, 5, 0, 0], [6, 0, 0, 0, 0]], "int32")
    batch = {"source": ids, "target": ids[:, :3]}
    keras.config.set_dtype_policy("mixed_float16")
    for i, (make, call) in enumerate(LAYERS.values()):
        if call not in (cached_attention, memory_of):
            keep(f"global_{i}", functional(make, call), x)
    keep("model_global", transformer(), batch)
    keep("model_own_float32", transformer(dtype="float32"), batch)
    keras.config.set_dtype_policy("mixed_bfloat16")
    keep("layer_own_float32", keras.Sequential([keras.Input((5, 8)), EncoderBlock(8, 2, 12, dtype="float32")]), x)
    keras.config.set_dtype_policy("float32")
    keep("layer_own_half", keras.Sequential([keras.Input((5, 8)), EncoderBlock(8, 2, 12, dtype="mixed_float16")]), x)
    assert policies["layer_own_half"][0] == "float16" and policies["layer_own_float32"][0] == "float32"
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), "float32"], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    got = np.load(tmp_path / "out.npz")
    assert json.loads((tmp_path / "policies.json").read_text()) == policies
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_case_26_a_float32_layer_stays_float32_under_a_global_half_policy(rng):
    keras.config.set_dtype_policy("mixed_bfloat16")
    x = rng.normal(size=(2, 5, D_MODEL)).astype("float32")
    for name, (make, call) in LAYERS.items():
        assert call(make(dtype="float32"), x).dtype == "float32", name


# --- 35 ------------------------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("test_precision")
class Forgetful(keras.layers.Layer):
    """A layer that does not hand `training` on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = EncoderBlock(8, 2, 12, dropout_rate=0.5, attention_dropout_rate=0.5, seed=3)

    def call(self, x):
        return self.block(x)


def test_case_35_dropout_is_off_at_inference_and_on_in_training(rng, tmp_path):
    """tensorflow PR#42625, keras#19688."""
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    model = keras.Sequential([keras.Input((5, 8)), Forgetful()])
    quiet = model.predict(x, verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), quiet)
    np.testing.assert_allclose(model(x), quiet, atol=1e-6)
    first, second = model(x, training=True), model(x, training=True)
    assert np.abs(first - quiet).max() > 1e-2 and np.abs(first - second).max() > 1e-2

    class Served(tf.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        @tf.function(input_signature=[tf.TensorSpec([None, 5, 8], tf.float32)])
        def serve(self, x):
            return self.model(x)

    served = Served()
    np.testing.assert_allclose(served.serve(x), quiet, atol=1e-6)
    model.export(tmp_path / "exported", verbose=False)
    tf.saved_model.save(served, tmp_path / "module")
    for folder in ("exported", "module"):
        proto = (tmp_path / folder / "saved_model.pb").read_bytes()
        for op in (b"RandomUniform", b"StatelessRandom", b"RngReadAndSkip"):
            assert op not in proto, (folder, op)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(x), quiet, atol=1e-6)


def test_case_35_a_seed_repeats_a_whole_training(rng):
    batch = {"source": rng.integers(1, 13, (4, 5)), "target": rng.integers(1, 11, (4, 3))}
    labels = rng.integers(1, 11, (4, 3))
    results = []
    for seed in (1, 1, 2):
        model = transformer(dropout_rate=0.3, attention_dropout_rate=0.2, seed=seed)
        model.build()
        model.set_weights([np.random.default_rng(i).normal(0, 0.3, w.shape) if w.dtype == "float32" else w.numpy()
                           for i, w in enumerate(model.weights)])  # fmt: skip
        outputs = [model(batch, training=True) for _ in range(2)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, outputs[1])
        assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
        results.append(float(loss))
    assert results[0] == results[1] != results[2]


# --- 36 ------------------------------------------------------------------------------------------------------------


def test_case_36_nested_containers_keep_their_weights(rng, tmp_path):
    ids = np.array([[3, 4, 5, 0], [6, 7, 0, 0]])
    model = Containers()
    want = model(ids)
    for w in model.trainable_variables:
        w.assign(w + rng.normal(0, 0.2, w.shape))
    want = model(ids)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(ids), want)
    fresh = Containers()
    fresh(ids)
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(fresh(ids), want)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_floating_ids_are_not_rounded(policy):
    """257 is not a bfloat16 number, 2049 not a float16 one."""
    ids = np.array([[257, 2049, 4099, 0]])
    layer = TokenEmbedding(5000, 4, dtype=policy)
    want = layer(ids)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layer(inputs))
    for got in (layer(ids.astype("float32")), layer(tf.constant(ids, tf.float64)), model(ids.astype("float32"))):
        assert got.dtype == want.dtype == keras.DTypePolicy(policy).compute_dtype
        np.testing.assert_array_equal(tf.cast(got, tf.float32), tf.cast(want, tf.float32))
        np.testing.assert_array_equal(got._keras_mask, ids != 0)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_floating_ids_are_not_rounded_by_the_model(policy):
    ids = np.array([[2049, 257, 4099, 0]])
    model = Transformer(
        5000, 5000, d_model=4, num_heads=1, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=4, dtype=policy
    )
    want = model({"source": ids, "target": ids[:, :3]})
    inputs = {name: keras.Input((None,), name=name) for name in ("source", "target")}
    for run in (model, keras.Model(inputs, model(inputs))):
        got = run({"source": ids.astype("float32"), "target": ids[:, :3].astype("float32")})
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
@pytest.mark.parametrize("layers", [1, 3])
def test_case_36_weights_of_another_depth_are_refused(tmp_path, layers, ending):
    """keras#23021: two blocks went into one without a word, and into three with the third left random."""
    model = transformer(num_encoder_layers=2, num_decoder_layers=2)
    model.build()
    path = tmp_path / f"two{ending}"
    (model.save if ending == ".keras" else model.save_weights)(path)
    same = transformer(num_encoder_layers=2, num_decoder_layers=2)
    same.build()
    same.load_weights(path)
    for one, other in zip(same.trainable_variables, model.trainable_variables):
        np.testing.assert_array_equal(one, other)
    for part in ("encoder", "decoder"):
        other = transformer(**{"num_encoder_layers": 2, "num_decoder_layers": 2, f"num_{part}_layers": layers})
        other.build()
        with pytest.raises(ValueError, match=rf"two{ending} holds {part}_blocks of 2 layers, the model has {layers}"):
            other.load_weights(path)
    with pytest.raises(ValueError, match=r"read from \.weights\.h5 and \.keras files\. Got .*two\.h5: save them by"):
        same.load_weights(tmp_path / "two.h5")
