"""ONNX folders: the names and order that clients expect, and the same answers as Keras from ONNX Runtime alone."""

import importlib
import json
import shutil
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export import export_onnx
from keras_attention.export.kinds import own
from keras_attention.export.kinds.translation_graphs import TransformerGraphs
from keras_attention.export.onnx_folder import graph
from keras_attention.export.onnx_folder.writer import CheckedSession
from keras_attention.export.report import Comparison
from keras_attention.generation import greedy
from keras_attention.generation.best_search import best_answer
from keras_attention.generation.limits import answer_limits
from keras_attention.inference.source_ids import source_ids
from keras_attention.inference.translator import Translator
from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import SoftmaxAttention
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer

pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")

LAYERS, HEADS, HEAD_DIM, WIDTH, MAX_LENGTH = 2, 4, 3, 12, 15
IDS = {"end_id": 3, "forbidden": (0, 2)}
SENTENCES = ["a cat sat", "the hat is a mat", "the cat sat on the mat", "a mat is on the hat", "what is that"] * 9
GRAPHS = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")


def transformer(vocabulary, **options):
    keras.utils.set_random_seed(11)
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "num_encoder_layers": 1, "num_decoder_layers": LAYERS, "mlp_dim": 20}
    model = Transformer(vocabulary, vocabulary, max_length=MAX_LENGTH, **{**sizes, **options})
    model.build()
    for weight in model.trainable_variables:  # biases of zero and scales of one would hide a lost weight
        weight.assign(weight + tf.random.normal(weight.shape, stddev=0.1, dtype=weight.dtype))
    return model


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(session, **arrays):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, arrays), strict=True))


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Half precision, grouped heads: the model, the same in float32, the report and the sessions."""
    tokenizer = SentencePieceTokenizer.train(SENTENCES, vocab_size=24)
    model = transformer(tokenizer.vocab_size, num_kv_heads=2, share_embeddings=True, dtype="mixed_float16")
    report = export_onnx(model, tmp_path_factory.mktemp("onnx") / "en_de", tokenizer=tokenizer, beams=2)
    plain = Transformer.from_config({**model.get_config(), "dtype": "float32"})
    plain.build()
    plain.set_weights(model.get_weights())
    return plain, tokenizer, report, [session(report.path / name) for name in GRAPHS]


def source_and_mask(rng, batch, length, vocabulary=20):
    """Ids of which the mask hides some, with a word where padding stands."""
    ids = rng.integers(4, vocabulary, (batch, length))
    lengths = rng.integers(1, length + 1, batch)
    lengths[0] = length
    return ids, (np.arange(length) < lengths[:, None]).astype(np.int64)


# --- the folder ----------------------------------------------------------------------------------------------------


def test_files_and_configs(exported):
    _, tokenizer, report, _ = exported
    files = {*GRAPHS, "config.json", "generation_config.json", "tokenizer.model", "export.json"}
    assert {entry.name for entry in report.path.iterdir()} == files
    assert [entry.name for entry in report.path.parent.iterdir()] == ["en_de"]  # nothing temporary
    config = json.loads((report.path / "config.json").read_text())
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    expected = ids | {
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": tokenizer.vocab_size,
        "d_model": WIDTH,
        "encoder_layers": 1,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 20,
        "forced_eos_token_id": None,
        "use_cache": True,
        "max_position_embeddings": MAX_LENGTH,
        "scale_embedding": True,
        "activation_function": "relu",
    }
    assert {name: config[name] for name in expected} == expected
    generation = json.loads((report.path / "generation_config.json").read_text())
    expected = ids | {"bad_words_ids": [[0], [2]], "max_length": MAX_LENGTH + 1, "num_beams": 2}
    assert {name: generation[name] for name in expected} == expected
    assert report.signatures == GRAPHS
    assert report.largest_difference < 1e-4
    assert set(report.differences) == {
        "encoder",
        "decoder",
        "decoder_with_past",
        "keys and values",
        "answers: scores",
    }


def test_names_order_dtypes_and_axes(exported):
    _, tokenizer, report, _ = exported
    vocabulary = tokenizer.vocab_size
    batch, source, target = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
    past = "past_decoder_sequence_length"
    total = "past_decoder_sequence_length + decoder_sequence_length"
    own = [HEADS, total, HEAD_DIM]

    def state(prefix, **lengths):
        return [
            (f"{prefix}.{layer}.{kind}.{part}", "FLOAT", [batch, HEADS, length, HEAD_DIM])
            for layer in range(LAYERS)
            for kind, length in lengths.items()
            for part in ("key", "value")
        ]

    mask, ids = ("encoder_attention_mask", "INT64", [batch, source]), ("input_ids", "INT64", [batch, target])
    hidden = [batch, source, WIDTH]
    expected = {
        "encoder_model.onnx": (
            [("input_ids", "INT64", [batch, source]), ("attention_mask", "INT64", [batch, source])],
            [("last_hidden_state", "FLOAT", hidden)],
        ),
        "decoder_model.onnx": (
            [mask, ids, ("encoder_hidden_states", "FLOAT", hidden)],
            [("logits", "FLOAT", [batch, target, vocabulary]), *state("present", decoder=total, encoder=source)],
        ),
        "decoder_with_past_model.onnx": (
            [mask, ids, *state("past_key_values", decoder=past, encoder=source)],
            [("logits", "FLOAT", [batch, "1", vocabulary]), *state("present", decoder=total)],
        ),
    }
    assert own[1] == total
    for name, (inputs, outputs) in expected.items():
        model = onnx.load(report.path / name)
        assert {opset.domain: opset.version for opset in model.opset_import}[""] == 18
        for values, wanted in ((model.graph.input, inputs), (model.graph.output, outputs)):
            got = [
                (
                    value.name,
                    onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type),
                    [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim],
                )
                for value in values
            ]
            assert got == wanted


def test_layers_stand_in_numeric_order():
    graphs = TransformerGraphs(transformer(9, num_decoder_layers=11, mlp_dim=2)).graphs()
    _, inputs, outputs = graphs["decoder_with_past_model.onnx"]
    layers = [int(port.name.split(".")[1]) for port in inputs[2:]]
    assert layers == sorted(layers) and layers[-1] == 10
    assert [port.name for port in outputs[-4:]] == [
        "present.9.decoder.key",
        "present.9.decoder.value",
        "present.10.decoder.key",
        "present.10.decoder.value",
    ]


# --- the same answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (3, 40), (0, 5)], ids=str)
def test_encoder(exported, rng, shape):
    model, _, _, (encoder, _, _) = exported
    ids, mask = source_and_mask(rng, *shape) if shape[0] else (np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    got = run(encoder, input_ids=ids, attention_mask=mask)["last_hidden_state"]
    assert got.shape == (*shape, WIDTH)
    want = model.encode(tf.constant(np.where(mask, ids, 0), tf.int32)).numpy()
    close(got * mask[:, :, None], want * mask[:, :, None])


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_first_tokens_and_steps_equal_one_pass(exported, rng, prefix):
    """Public report case 46. With a prefix of 0 everything goes through decoder_with_past, from a past of length 0."""
    model, _, _, (encoder, first, further) = exported
    batch, length = 2, 7
    ids, mask = source_and_mask(rng, batch, 6)
    target = rng.integers(4, 20, (batch, length))
    want = model({"source": np.where(mask, ids, 0).astype(np.int32), "target": target.astype(np.int32)}).numpy()
    hidden = run(encoder, input_ids=ids, attention_mask=mask)["last_hidden_state"]
    start = run(first, encoder_attention_mask=mask, input_ids=target[:, : max(prefix, 1)], encoder_hidden_states=hidden)
    past = {name.replace("present", "past_key_values"): x for name, x in start.items() if name != "logits"}
    if prefix:
        close(start["logits"], want[:, :prefix])
    else:
        past = {name: x[:, :, :0] if ".decoder." in name else x for name, x in past.items()}
    for t in range(prefix, length):
        got = run(further, encoder_attention_mask=mask, input_ids=target[:, t : t + 1], **past)
        close(got.pop("logits")[:, 0], want[:, t])
        past |= {name.replace("present", "past_key_values"): x for name, x in got.items()}
    assert past["past_key_values.1.decoder.key"].shape == (batch, HEADS, length, HEAD_DIM)


def test_translator_answers_like_keras(exported):
    model, tokenizer, report, _ = exported
    texts = ["the cat sat", "what", "a mat is on the hat is on the mat is a hat"]
    source = source_ids(tokenizer, texts, MAX_LENGTH)
    limits = answer_limits((source != 0).sum(axis=1), MAX_LENGTH)
    assert Translator.load(report.path)(texts, beams=1) == tokenizer.decode(
        greedy(model.step, model.init_state(tf.constant(source)), [2] * 3, **IDS, max_new_tokens=limits).tokens.numpy()
    )
    state = model.init_state(tf.constant(source))
    want = best_answer(model, state, limits=tf.constant(limits), beams=2)  # as it was exported
    assert Translator.load(report.path)(texts) == tokenizer.decode(want.tokens.numpy())


ELSEWHERE = """
import sys
sys.modules.update(dict.fromkeys(("keras_attention", "keras", "tensorflow", "tf2onnx", "onnx")))
import numpy as np
import onnxruntime

folder, arrays = sys.argv[1:]
given = np.load(arrays)
sessions = [onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])
            for name in ("encoder_model", "decoder_model", "decoder_with_past_model")]

def run(session, feeds):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()})))

mask = given["mask"]
hidden = run(sessions[0], {"input_ids": given["ids"], "attention_mask": mask})["last_hidden_state"]
feeds = {"encoder_attention_mask": mask, "encoder_hidden_states": hidden}
token, tokens, decoder = np.full((len(mask), 1), 2), [], sessions[1]
for _ in range(5):
    outputs = run(decoder, feeds | {"input_ids": token})
    logits = outputs.pop("logits")[:, -1]
    logits[:, [0, 2]] = -np.inf
    token = logits.argmax(-1)[:, None]
    tokens.append(token)
    feeds |= {name.replace("present", "past_key_values"): x for name, x in outputs.items()}
    decoder = sessions[2]
np.save(arrays, np.concatenate(tokens, axis=1))
"""


def test_runs_where_only_onnxruntime_is(exported, tmp_path, rng):
    model, _, report, _ = exported
    ids, mask = source_and_mask(rng, 3, 6)
    arrays = tmp_path / "arrays.npz"
    np.savez(arrays, ids=ids, mask=mask)
    command = [sys.executable, "-c", textwrap.dedent(ELSEWHERE), str(report.path), str(arrays)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    state = model.init_state(tf.constant(np.where(mask, ids, 0), tf.int32))
    want = greedy(model.step, state, [2, 2, 2], end_id=-1, forbidden=(0, 2), max_new_tokens=5)
    np.testing.assert_array_equal(np.load(f"{arrays}.npy"), want.tokens)


# --- a user's own models; public report case 48: unused inputs stay; case 44: loops and unknown operations -----------


def functional_model():
    ids = keras.Input((None,), dtype="int64", name="ids")
    mask = keras.Input((None,), dtype="bool", name="mask")
    x = keras.layers.Embedding(17, 8)(ids)
    hidden = MultiHeadAttention(d_model=8, num_heads=2)(x, padding_mask=mask)
    return keras.Model({"ids": ids, "mask": mask}, {"hidden": hidden, "pooled": keras.ops.mean(hidden, axis=1)}), None


def sequential_model():
    layers = [
        keras.Input((None,), dtype="int32", name="ids"),
        keras.layers.Embedding(17, 8),
        keras.layers.Dense(3, name="scores"),
    ]
    return keras.Sequential(layers), None


class OwnModel(keras.Model):
    """Two inputs of a dict, one of them unused; two outputs of a tuple."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(17, 8)
        self.attention = MultiHeadAttention(d_model=8, num_heads=2)

    def call(self, inputs):
        x = self.embedding(inputs["ids"])
        return self.attention(x, use_causal_mask=True), tf.reduce_max(x, axis=1)


def subclassed_model():
    ids = tf.TensorSpec([None, None], tf.int64)
    return OwnModel(), {"ids": ids, "unused": tf.TensorSpec([None, None], tf.int32)}


@pytest.mark.parametrize(
    ("make", "inputs", "outputs", "external_data_over"),
    [
        (functional_model, ["ids", "mask"], ["hidden", "pooled"], 10**9),
        (functional_model, ["ids", "mask"], ["hidden", "pooled"], 1000),
        (sequential_model, ["ids"], ["scores"], 10**9),
        (subclassed_model, ["ids", "unused"], ["output_0", "output_1"], 10**9),
    ],
    ids=["functional", "external-data", "sequential", "subclassed"],
)
def test_own_model(tmp_path, rng, make, inputs, outputs, external_data_over):
    model, signature = make()
    report = export_onnx(model, tmp_path / "own", input_signature=signature, external_data_over=external_data_over)
    assert report.signatures == ("model.onnx",)
    files = {"model.onnx", "export.json"} | ({"model.onnx_data"} if external_data_over == 1000 else set())
    assert {entry.name for entry in report.path.iterdir()} == files
    moved = tmp_path / "moved"  # external data is named relatively
    shutil.move(report.path, moved)
    graph = session(moved / "model.onnx")
    assert [value.name for value in graph.get_inputs()] == inputs
    assert [value.name for value in graph.get_outputs()] == outputs
    for batch, length in [(1, 1), (2, 7), (3, 40)]:
        given = {"ids": rng.integers(0, 17, (batch, length))}
        if "mask" in inputs:
            given["mask"] = rng.integers(0, 2, (batch, length)) > 0
        if "unused" in inputs:
            given["unused"] = rng.integers(0, 2, (batch, length)).astype(np.int32)
        want = model(given if len(given) > 1 else given["ids"].astype(np.int32))
        want = want if isinstance(want, dict) else dict(zip(outputs, tf.nest.flatten(want), strict=True))
        kinds = {value.name: value.type for value in graph.get_inputs()}
        feeds = {k: v.astype(np.int64 if kinds[k] == "tensor(int64)" else np.int32) for k, v in given.items()}
        got = run(graph, **feeds)
        for name in outputs:
            close(got[name], want[name])


class Growing(keras.Model):
    """A loop that grows its value from one number to ten."""

    def call(self, x):
        def body(i, values):
            return i + 1, tf.concat([values, values[-1:] * 0 + x[0, :1] * 2], axis=0)

        shapes = [tf.TensorShape([]), tf.TensorShape([None])]
        _, values = tf.while_loop(lambda i, values: i < 10, body, [tf.constant(1), x[0, :1]], shape_invariants=shapes)
        return values[None]


class Updating(keras.Model):
    """An update that XLA has an operation for, and ONNX has not."""

    def call(self, x):
        return keras.ops.slice_update(x, (0, 1), x[:, :1])


class Compiled(keras.Model):
    """A function that asks for XLA itself."""

    def call(self, x):
        return tf.function(lambda y: y * 2 + 1, jit_compile=True)(x)


class Choosing(keras.Model):
    """A choice between numbers of which the one not chosen may be no number."""

    def call(self, x):
        return tf.where(x > 0, tf.math.log(x), -x)


def test_what_a_choice_leaves_out_stays_out(tmp_path):
    signature = tf.TensorSpec([None, 3], tf.float32, "x")
    report = export_onnx(Choosing(), tmp_path / "choice", input_signature=signature)
    x = np.array([[0.0, -2.5, 7.0], [3.0, np.inf, -0.5]], np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        close(run(session(report.path / "model.onnx"), x=x)["output_0"], np.where(x > 0, np.log(x), -x))


def test_a_loop_that_grows_converts(tmp_path):
    signature = tf.TensorSpec([None, 3], tf.float32, "x")
    report = export_onnx(Growing(), tmp_path / "loop", input_signature=signature)
    got = run(session(report.path / "model.onnx"), x=np.array([[1.0, 5, 5]], np.float32))
    np.testing.assert_array_equal(got["output_0"], [[1.0] + [2.0] * 9])


@pytest.mark.parametrize(("model", "operation"), [(Updating, "XlaDynamicUpdateSlice"), (Compiled, "PartitionedCall")])
def test_an_unknown_operation_is_named(tmp_path, model, operation):
    signature = tf.TensorSpec([None, 3], tf.float32, "x")
    with pytest.raises(UsageError, match=f"no operation for TensorFlow's .*{operation}"):
        export_onnx(model(), tmp_path / "model", input_signature=signature)
    assert list(tmp_path.iterdir()) == []


# --- refusals ------------------------------------------------------------------------------------------------------


def small_model():
    x = keras.Input((3,), name="x")
    return keras.Model(x, keras.layers.Dense(2, name="scores")(x))


@pytest.mark.parametrize("mechanism", ["linear", SoftmaxAttention(cache="rolling")], ids=["recurrent", "rolling"])
def test_refuses_decoders_whose_state_is_not_keys_and_values(tmp_path, mechanism):
    model = transformer(9, decoder_mechanism=mechanism)
    with pytest.raises(UsageError, match=r"(?s)does not fit.*Export a SavedModel, or train with one of softmax"):
        export_onnx(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_folder_that_exists(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"exists already. Give a new folder"):
        export_onnx(small_model(), tmp_path / "model")
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"


def test_missing_packages_are_one_clear_error(tmp_path, monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(UsageError, match=r"'tf2onnx'.*pip install keras-attention\[onnx\]"):
        export_onnx(small_model(), tmp_path / "model")


def test_text_has_no_onnx(tmp_path):
    class Joined(keras.Model):
        def call(self, words):
            return tf.strings.length(words)

    with pytest.raises(UsageError, match="'words' holds text"):
        export_onnx(Joined(), tmp_path / "model", input_signature=tf.TensorSpec([None], tf.string, "words"))


def test_a_failed_check_leaves_nothing(tmp_path, monkeypatch):
    def wrong(plan, sessions):
        assert list(sessions) == ["model.onnx"]
        Comparison("float32").numbers("scores", np.array([0.0, np.nan]), np.zeros(2))

    monkeypatch.setattr(own.OwnModelPlan, "compare_onnx", wrong)
    with pytest.raises(UsageError, match="scores differs from Keras by nan"):
        export_onnx(small_model(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_load_is_an_error(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"ONNX Runtime does not load broken.onnx"):
        CheckedSession(path)


def test_a_graph_that_does_not_run_is_an_error(exported):
    _, _, report, _ = exported
    encoder = CheckedSession(report.path / "encoder_model.onnx")
    ids = np.ones(3, np.int64)  # without a batch
    with pytest.raises(UsageError, match=r"does not run encoder_model.onnx \(.*rank.*nothing was written"):
        encoder({"input_ids": ids, "attention_mask": ids})


def test_weights_beside_the_graph(exported, tmp_path, rng):
    """The way of large models: weights never pass through TensorFlow's or tf2onnx's protobufs."""
    model, *_ = exported
    function, inputs, outputs = TransformerGraphs(model).graphs()["encoder_model.onnx"]
    path = tmp_path / "encoder.onnx"
    graph.write(path, function, inputs, outputs, model.variables, external_data_over=0)
    names = {tensor.name for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    weights = {name for name in names if name.startswith("weight_")}
    assert 0 < len(weights) < len(model.variables)  # the encoder's, not the decoder's
    ids, mask = source_and_mask(rng, 2, 5)
    got = run(session(path), input_ids=ids, attention_mask=mask)["last_hidden_state"]
    want = model.encode(tf.constant(np.where(mask, ids, 0), tf.int32)).numpy()
    close(got * mask[:, :, None], want * mask[:, :, None])
