"""SavedModels: what their signatures are, that they answer like Keras, and that they need nothing of ours to do so."""

import json
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_language_model import TinyLanguageModel

from keras_attention.errors import UsageError
from keras_attention.export import export_saved_model
from keras_attention.export.kinds import own
from keras_attention.export.report import Comparison
from keras_attention.export.saved_model import graph_scan
from keras_attention.export.state_names import named, packed
from keras_attention.generation import beam_search, greedy, greedy_uncached
from keras_attention.generation.best_search import best_answer
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.generation.limits import answer_limits
from keras_attention.inference.source_ids import source_ids
from keras_attention.layers import MultiHeadAttention
from keras_attention.mechanisms import SoftmaxAttention
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer

SOURCE, TARGET, CAPACITY, LAYERS = 19, 23, 13, 2
IDS = {"end_id": 3, "forbidden": (0, 2)}  # neither padding nor begin of sentence is an answer
SERVED = (tf.float32, tf.int32, tf.int64, tf.string)
SENTENCES = ["a cat sat", "the hat is a mat", "the cat sat on the mat", "a mat is on the hat", "what is that"] * 9


def transformer(source=SOURCE, target=TARGET, **options):
    keras.utils.set_random_seed(11)
    sizes = {"d_model": 12, "num_heads": 4, "num_encoder_layers": 1, "num_decoder_layers": LAYERS, "mlp_dim": 20}
    model = Transformer(source, target, max_length=CAPACITY, **sizes, **options)
    model.build()
    for weight in model.trainable_variables:  # biases of zero and scales of one would hide a lost weight
        weight.assign(weight + tf.random.normal(weight.shape, stddev=0.1, dtype=weight.dtype))
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(SENTENCES, vocab_size=24)


@pytest.fixture(scope="module")
def text_export(tokenizer, tmp_path_factory):
    model = transformer(tokenizer.vocab_size, tokenizer.vocab_size, share_embeddings=True)
    report = export_saved_model(model, tmp_path_factory.mktemp("text") / "en_de", tokenizer=tokenizer)
    return model, report, tf.saved_model.load(str(report.path)).signatures


@pytest.fixture(scope="module")
def ids_export(tmp_path_factory):
    """Different vocabularies, grouped heads, half precision, compiled with XLA, dropout, beams."""
    model = transformer(num_kv_heads=2, dtype="mixed_float16", dropout_rate=0.4, attention_dropout_rate=0.3)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    report = export_saved_model(model, tmp_path_factory.mktemp("ids") / "model", beams=2, length_penalty=1.5)
    return model, report, tf.saved_model.load(str(report.path)).signatures


def random_source(rng, batch, length, vocabulary=SOURCE):
    return rng.integers(4, vocabulary, (batch, length)).astype(np.int32)


def call(signature, **arrays):
    return {name: x.numpy() for name, x in signature(**{k: tf.constant(v) for k, v in arrays.items()}).items()}


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=0)


# --- what is exported ----------------------------------------------------------------------------------------------


def test_layout_and_report(text_export):
    _, report, _ = text_export
    assert report.path.name == "1" and report.path.parent.name == "en_de"
    assert sorted(entry.name for entry in report.path.parent.parent.iterdir()) == ["en_de"]  # nothing temporary
    assert report.largest_difference < 1e-5
    assert {"encode", "prefill", "decode_step", "generate: scores", "texts"} <= set(report.differences)
    assert "largest difference" in str(report) and str(report.path) in str(report)
    described = json.loads((report.path / "assets.extra" / "export.json").read_text())
    assert described["imports"] == ["tensorflow_text"]
    assert described["signatures"]["translate"]["imports"] == ["tensorflow_text"]
    assert described["signatures"]["generate"]["imports"] == []
    assert described["options"] == {"beams": 1, "length_penalty": 0.6, "max_length": CAPACITY}


def test_names_dtypes_and_shapes(ids_export):
    """Public report case 40, the steps of decoding."""
    _, _, served = ids_export
    state = {"lengths", "overflow", "memory_valid", "memory_lengths"} | {
        f"layers.{i}.{part}.{kind}" for i in range(LAYERS) for part in ("self", "memory") for kind in ("key", "value")
    }
    source = {"input_ids", "input_lengths"}
    expected = {
        "encode": (source, {"memory", "mask"}),
        "prefill": (source | {"target_ids", "target_lengths"}, {"logits"} | state),
        "decode_step": ({"token"} | state, {"logits"} | state),
        "generate": (source | {"max_new_tokens"}, {"output_ids", "output_lengths", "scores", "overflow"}),
    }
    expected["serving_default"] = expected["generate"]
    assert set(served) == set(expected)
    for name, (inputs, outputs) in expected.items():
        specs = {spec.name: spec for spec in served[name].structured_input_signature[1].values()}
        assert set(specs) == inputs, name
        assert set(served[name].structured_outputs) == outputs, name
        for spec in [*specs.values(), *served[name].structured_outputs.values()]:
            assert spec.dtype in SERVED and spec.shape.rank >= 1 and spec.shape[0] is None, (name, spec)
    step = {spec.name: spec for spec in served["decode_step"].structured_input_signature[1].values()}
    assert step["layers.1.self.key"] == tf.TensorSpec([None, 2, CAPACITY, 3], tf.float32, "layers.1.self.key")
    assert step["token"] == tf.TensorSpec([None], tf.int32, "token")


def test_text_signatures(text_export):
    _, _, served = text_export
    assert set(served) == {"serving_default", "translate", "generate", "encode", "prefill", "decode_step"}
    for name in ("serving_default", "translate"):
        (spec,) = served[name].structured_input_signature[1].values()
        assert (spec.name, spec.dtype, spec.shape.as_list()) == ("text", tf.string, [None])
        assert {k: (v.dtype, v.shape.rank) for k, v in served[name].structured_outputs.items()} == {
            "text": (tf.string, 1)
        }


def test_graphs_hold_nothing_that_a_server_cannot_run(text_export, ids_export):
    """Public report case 41: no XLA inside, though the model was compiled with it."""
    for _, report, _ in (text_export, ids_export):
        assert list(graph_scan.findings(report.path)) == []


# --- the same answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (0, 5)], ids=str)
def test_encode(text_export, rng, shape):
    model, _, served = text_export
    ids = random_source(rng, *shape)
    got = call(served["encode"], input_ids=ids, input_lengths=np.full(shape[0], shape[1], np.int32))
    assert got["memory"].shape == (*shape, 12)
    close(got["memory"], model.encode(tf.constant(ids)))
    np.testing.assert_array_equal(got["mask"], np.ones(shape))


def test_prefill_and_steps_equal_one_pass(text_export, rng):
    model, _, served = text_export
    batch, length, prefix = 3, 6, 2
    source, target = random_source(rng, batch, length), random_source(rng, batch, 7)
    lengths = np.array([6, 3, 5], np.int32)
    want = model({"source": np.where(np.arange(length) < lengths[:, None], source, 0), "target": target}).numpy()
    got = call(
        served["prefill"],
        input_ids=source,
        input_lengths=lengths,
        target_ids=target[:, :prefix],
        target_lengths=np.full(batch, prefix, np.int32),
    )
    close(got.pop("logits"), want[:, :prefix])
    for t in range(prefix, target.shape[1]):
        got = call(served["decode_step"], token=target[:, t], **got)
        close(got.pop("logits"), want[:, t])
    np.testing.assert_array_equal(got["lengths"], [7, 7, 7])
    np.testing.assert_array_equal(got["overflow"], [0, 0, 0])


def test_generate_equals_greedy_with_a_limit_for_each_row(text_export, rng):
    model, _, served = text_export
    source, lengths = random_source(rng, 3, 5), np.array([5, 2, 4], np.int32)
    masked = np.where(np.arange(5) < lengths[:, None], source, 0)
    asked = np.array([2, 0, 99], np.int32)
    limits = np.where(asked > 0, np.minimum(asked, CAPACITY), answer_limits(lengths, CAPACITY))
    want = greedy(model.step, model.init_state(tf.constant(masked)), [2, 2, 2], **IDS, max_new_tokens=limits)
    got = call(served["generate"], input_ids=source, input_lengths=lengths, max_new_tokens=asked)
    np.testing.assert_array_equal(got["output_ids"], want.tokens)
    np.testing.assert_array_equal(got["output_lengths"], want.lengths)
    close(got["scores"], want.scores, 1e-4)


def test_generate_with_beams_in_half_precision(ids_export, rng):
    model, report, served = ids_export
    assert report.largest_difference < 1e-2
    source = random_source(rng, 2, 5)
    limits = np.array([3, 4], np.int32)
    want = beam_search(
        model.step,
        model.reorder,
        model.init_state(tf.constant(source)),
        [2, 2],
        beams=2,
        **IDS,
        max_new_tokens=limits,
        length_penalty=1.5,
    )
    got = call(served["generate"], input_ids=source, input_lengths=[5, 5], max_new_tokens=limits)
    close(got["scores"], want.scores[:, 0], 1e-2)
    np.testing.assert_array_equal(got["output_ids"], want.tokens[:, 0])


def test_translate(text_export, tokenizer):
    model, _, served = text_export
    texts = ["the cat sat", "", "a mat is on the hat is on the mat is a hat", " \t\u00a0", "what"]
    got = [text.decode() for text in call(served["translate"], text=np.array(texts, object))["text"]]
    source = source_ids(tokenizer, texts, CAPACITY)
    limits = answer_limits((source != 0).sum(axis=1), CAPACITY)
    want = greedy(model.step, model.init_state(tf.constant(source)), [2] * len(texts), **IDS, max_new_tokens=limits)
    want = tokenizer.decode(want.tokens.numpy())
    assert got == [answer if text.strip() else "" for text, answer in zip(texts, want, strict=True)]
    assert got[1] == got[3] == ""


@pytest.mark.parametrize("mechanism", ["local", "linear", SoftmaxAttention(cache="rolling")], ids=str)
def test_whole_answers_from_every_kind_of_state(rng, mechanism):
    """States that grow, that roll and cannot grow, and that have no length at all."""
    model = transformer(decoder_mechanism=mechanism)
    source = tf.constant(random_source(rng, 2, 5))
    state = decoding_state(model, source, CAPACITY)
    got = best_answer(model, state, limits=tf.constant([5, 3]))

    def logits(prefix):
        return model({"source": source, "target": prefix})

    want = greedy_uncached(logits, [2, 2], **IDS, max_new_tokens=[5, 3])
    np.testing.assert_array_equal(got.tokens, want.tokens)
    close(got.scores, want.scores, 1e-4)


# --- what servers do to requests -----------------------------------------------------------------------------------


def joined(requests):
    """Requests as TensorFlow Serving's batching joins them: padded at the end of each axis with the first element."""
    batch = {}
    for name in requests[0]:
        arrays = [request[name] for request in requests]
        shape = np.max([x.shape[1:] for x in arrays], axis=0).astype(int)
        rows = []
        for x in arrays:
            row = np.full((len(x), *shape), x.flat[0], x.dtype)
            row[tuple(slice(n) for n in x.shape)] = x
            rows.append(row)
        batch[name] = np.concatenate(rows)
    return batch


def test_joined_requests_answer_as_alone(text_export, rng):
    _, _, served = text_export
    steps = rng.integers(4, 20, (2, 3)).astype(np.int32)
    alone, states = [], []
    for row, (length, prefix) in enumerate([(4, 1), (7, 3)]):
        request = {
            "input_ids": random_source(rng, 1, length),
            "input_lengths": np.array([length], np.int32),
            "target_ids": random_source(rng, 1, prefix),
            "target_lengths": np.array([prefix], np.int32),
        }
        alone.append(
            {"request": request, "encode": call(served["encode"], **{k: request[k] for k in list(request)[:2]})}
        )
        state = call(served["prefill"], **request)
        alone[row]["prefill"] = state.pop("logits")[:, prefix - 1]
        states.append(dict(state))
        alone[row]["steps"] = []
        for t in range(3):
            state = call(served["decode_step"], token=steps[row : row + 1, t], **state)
            alone[row]["steps"].append(state.pop("logits"))

    request = joined([row["request"] for row in alone])
    encoded = call(served["encode"], **{k: request[k] for k in list(request)[:2]})
    together = call(served["prefill"], **request)
    for row, (length, prefix) in enumerate([(4, 1), (7, 3)]):
        close(encoded["memory"][row, :length], alone[row]["encode"]["memory"][0])
        np.testing.assert_array_equal(encoded["mask"][row].sum(), length)
        close(together["logits"][row, prefix - 1], alone[row]["prefill"][0])
    # Two states that were made apart, of sources of different length, joined for a step.
    state = joined(states)
    for t in range(3):
        state = call(served["decode_step"], token=steps[:, t], **state)
        logits = state.pop("logits")
        for row in range(2):
            close(logits[row], alone[row]["steps"][t][0])


def test_a_row_past_its_end_says_so_and_leaves_the_others(text_export, rng):
    model, _, served = text_export
    source, target = random_source(rng, 2, 4), random_source(rng, 2, CAPACITY)
    lengths = np.array([CAPACITY, 2], np.int32)
    state = call(served["prefill"], input_ids=source, input_lengths=[4, 4], target_ids=target, target_lengths=lengths)
    state.pop("logits")
    state = call(served["decode_step"], token=[5, 6], **state)
    logits = state.pop("logits")
    assert np.isnan(logits[0]).all()
    np.testing.assert_array_equal(state["overflow"], [1, 0])
    want = model({"source": source[1:], "target": np.append(target[1:, :2], [[6]], axis=1)})
    close(logits[1], want[0, -1])


def test_an_unknown_id_spoils_its_own_row_only(text_export, rng):
    model, _, served = text_export
    source = random_source(rng, 2, 4)
    source[0, 1] = 4000
    got = call(served["generate"], input_ids=source, input_lengths=[4, 4], max_new_tokens=[3, 3])
    np.testing.assert_array_equal(got["overflow"], [1, 0])
    want = greedy(model.step, model.init_state(tf.constant(source[1:])), [2], **IDS, max_new_tokens=3)
    np.testing.assert_array_equal(got["output_ids"][1], want.tokens[0])


# --- other processes -----------------------------------------------------------------------------------------------

# Nothing of ours, no Keras; then with tensorflow_text, which itself needs Keras.
ELSEWHERE = """
import json, sys

ABSENT = ("keras_attention", "keras", "tensorflow_text")
sys.modules.update(dict.fromkeys(ABSENT))  # an import of any of them fails
import numpy as np
import tensorflow as tf

ids_folder, text_folder, table_folder, arrays = sys.argv[1:]
given = np.load(arrays)
results = {}
ids = tf.saved_model.load(ids_folder).signatures
source = {"input_ids": tf.constant(given["source"]), "input_lengths": tf.constant(given["lengths"])}
results["memory"] = ids["encode"](**source)["memory"]
results["tokens"] = ids["generate"](**source, max_new_tokens=tf.constant(given["limits"]))["output_ids"]
table = tf.saved_model.load(table_folder).signatures["serving_default"]
results["table"] = table(words=tf.constant(["a", "b", "z"]))["ids"]
try:
    tf.saved_model.load(text_folder)
except Exception as error:
    results["refusal"] = np.array(str(error))
assert not any(sys.modules[name] for name in ABSENT)
del sys.modules["keras"], sys.modules["tensorflow_text"]
for module in json.load(open(text_folder + "/assets.extra/export.json"))["imports"]:
    __import__(module)
translate = tf.saved_model.load(text_folder).signatures["serving_default"]
results["texts"] = np.array([t.decode() for t in translate(text=tf.constant(["the cat", "a mat"]))["text"].numpy()])
assert sys.modules["keras_attention"] is None
np.savez(arrays, **{name: np.asarray(x) for name, x in results.items()})
"""


class WordIds(keras.layers.Layer):
    """A vocabulary file behind a lookup table."""

    def __init__(self, path):
        super().__init__()
        rows = tf.lookup.TextFileInitializer(
            str(path), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        self.table = tf.lookup.StaticHashTable(rows, default_value=-1)

    def call(self, words):
        return self.table.lookup(words) + 1


class WordModel(keras.Model):
    def __init__(self, path):
        super().__init__()
        self.word_ids = WordIds(path)

    def call(self, inputs):
        return {"ids": self.word_ids(inputs["words"])}


def test_loads_where_the_package_is_absent(text_export, ids_export, tmp_path, rng):
    """Public report case 38 (the table and its file come along) and public report case 39."""
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("a\nb\nc\n")
    words = tf.constant(["a", "c"])
    table = export_saved_model(
        WordModel(vocabulary),
        tmp_path / "table",
        input_signature={"words": tf.TensorSpec([None], tf.string)},
        samples=[{"words": words}],
    )
    vocabulary.unlink()  # the export has its own copy

    (_, text, served_text), (_, ids, served_ids) = text_export, ids_export
    source = {"input_ids": random_source(rng, 2, 5), "input_lengths": np.array([5, 3], np.int32)}
    limits = np.array([4, 2], np.int32)
    arrays = tmp_path / "arrays.npz"
    np.savez(arrays, source=source["input_ids"], lengths=source["input_lengths"], limits=limits)
    command = [sys.executable, "-c", textwrap.dedent(ELSEWHERE), *map(str, (ids.path, text.path, table.path, arrays))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    got = np.load(arrays)
    np.testing.assert_array_equal(got["memory"], call(served_ids["encode"], **source)["memory"])
    np.testing.assert_array_equal(
        got["tokens"], call(served_ids["generate"], **source, max_new_tokens=limits)["output_ids"]
    )
    np.testing.assert_array_equal(got["table"], [1, 2, 0])
    assert "Op type not registered" in str(got["refusal"])
    texts = call(served_text["translate"], text=np.array(["the cat", "a mat"], object))["text"]
    assert got["texts"].tolist() == [text.decode() for text in texts]


# --- a user's own models -------------------------------------------------------------------------------------------


def test_own_functional_model_keeps_its_names(tmp_path, rng):
    """Public report case 40, a model from a dict to a dict."""
    ids = keras.Input((None,), dtype="int64", name="ids")
    mask = keras.Input((None,), dtype="bool", name="mask")
    x = keras.layers.Embedding(17, 8)(ids)
    hidden = MultiHeadAttention(d_model=8, num_heads=2)(x, padding_mask=mask)
    model = keras.Model({"ids": ids, "mask": mask}, {"hidden": hidden, "pooled": keras.ops.mean(hidden, axis=1)})
    report = export_saved_model(model, tmp_path / "own")
    serve = tf.saved_model.load(str(report.path)).signatures["serving_default"]
    specs = {spec.name: spec for spec in serve.structured_input_signature[1].values()}
    assert specs == {
        "ids": tf.TensorSpec([None, None], tf.int64, "ids"),
        "mask": tf.TensorSpec([None, None], tf.int32, "mask"),
    }
    for batch, length in [(1, 1), (2, 7), (3, 40)]:
        given = {"ids": rng.integers(0, 17, (batch, length)), "mask": rng.integers(0, 2, (batch, length))}
        want = model({"ids": given["ids"], "mask": given["mask"].astype(bool)})
        got = call(serve, ids=given["ids"], mask=given["mask"].astype(np.int32))
        assert set(got) == {"hidden", "pooled"}
        close(got["hidden"], want["hidden"])


def test_own_language_model_gets_prefill_and_decode_step(tmp_path, rng):
    model = TinyLanguageModel(vocabulary=21, width=6)
    model(np.ones((1, 2), np.int32))
    with pytest.raises(UsageError, match="give max_length="):
        export_saved_model(model, tmp_path / "lm", input_signature=tf.TensorSpec([None, None], tf.int32, "ids"))
    report = export_saved_model(
        model, tmp_path / "lm", max_length=9, input_signature=tf.TensorSpec([None, None], tf.int32, "ids")
    )
    served = tf.saved_model.load(str(report.path)).signatures
    assert set(served) == {"serving_default", "prefill", "decode_step"}
    ids = rng.integers(1, 21, (2, 6)).astype(np.int32)
    want = call(served["serving_default"], ids=ids)["output_0"]
    close(want, model(ids))
    got = call(served["prefill"], input_ids=ids[:, :3], input_lengths=[3, 3])
    close(got.pop("logits"), want[:, :3])
    for t in range(3, 6):
        got = call(served["decode_step"], token=ids[:, t], **got)
        close(got.pop("logits"), want[:, t])


class Faulty(keras.Model):
    """Something that must not be served, chosen by `fault`."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def call(self, x):
        if self.fault == "dropout":
            return tf.nn.dropout(x, 0.5)
        if self.fault == "compiled":
            return tf.function(lambda y: y * 2, jit_compile=True)(x)
        tf.debugging.assert_positive(x)
        return x + 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [("dropout", "random"), ("compiled", "without XLA"), ("assertion", "one bad row would fail the whole batch")],
)
def test_refuses_graphs_that_cannot_be_served(tmp_path, fault, message):
    signature = tf.TensorSpec([None, 3], tf.float32, "x")
    with pytest.raises(UsageError, match=message):
        export_saved_model(Faulty(fault), tmp_path / "faulty", input_signature=signature)
    assert list(tmp_path.iterdir()) == []


# --- versions and bad input ----------------------------------------------------------------------------------------


def small_model(name="x"):
    x = keras.Input((3,), name=name)
    return keras.Model(x, keras.layers.Dense(2, name="scores")(x))


def test_next_version(tmp_path):
    path = tmp_path / "model"
    (path / "7").mkdir(parents=True)
    report = export_saved_model(small_model(), path)
    assert report.path == path / "8"
    assert sorted(entry.name for entry in path.iterdir()) == ["7", "8"]
    assert report.signatures == ("serving_default",)
    assert list(report.differences) == ["scores"]


def test_failed_check_leaves_nothing(tmp_path, monkeypatch):
    def wrong(plan, served):
        Comparison("float32").numbers("scores", np.array([1.0, 2.0]), np.array([1.0, 2.5]))

    monkeypatch.setattr(own.OwnModelPlan, "compare_served", wrong)
    with pytest.raises(UsageError, match=r"scores differs from Keras by 0\.5.*othing was written"):
        export_saved_model(small_model(), tmp_path / "sub" / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["file", "folder", "link"])
def test_refuses_what_is_in_the_way(tmp_path, content):
    path = tmp_path / "model"
    if content == "file":
        path.write_text("mine")
    elif content == "folder":
        path.mkdir()
        (path / "encoder_model.onnx").write_text("mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"[Gg]ive"):
        export_saved_model(small_model(), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_refuses_states_beyond_learned_positions(tmp_path):
    model = transformer(positions="learned")
    with pytest.raises(UsageError, match=f"learned positions end at {CAPACITY}"):
        export_saved_model(model, tmp_path / "model", max_length=CAPACITY + 1)
    assert list(tmp_path.iterdir()) == []


def test_refuses_names_that_cannot_be_served(tmp_path):
    with pytest.raises(UsageError, match=r"'my ids'.*letters, digits"):
        export_saved_model(small_model("my ids"), tmp_path / "model")


def test_subclassed_model_needs_a_signature(tmp_path):
    with pytest.raises(UsageError, match="Give input_signature="):
        export_saved_model(Faulty("none"), tmp_path / "model")


def test_state_names_are_numeric_and_come_back():
    state = {"layers": {str(i): {"key": i} for i in (10, 9, 2, 0)}, "more": [20, (30, 40)]}
    names = named(state)
    assert list(names) == [
        "layers.0.key",
        "layers.2.key",
        "layers.9.key",
        "layers.10.key",
        "more.0",
        "more.1.0",
        "more.1.1",
    ]
    assert packed(state, names) == state
