"""Translator over its three backends: recognising folders, batches, the searches, and folders that are not whole."""

import json
import shutil

import keras
import numpy as np
import pytest
import reference_generation as reference
import tensorflow as tf
from reference_generation import ToyModel, reorder
from reference_onnx_folder import OnnxToy

from keras_attention.errors import UsageError
from keras_attention.generation import Translator, answer_limits, beam_search, greedy, greedy_uncached
from keras_attention.generation.array_beam import array_beam_search
from keras_attention.inference.model_backend import ModelBackend
from keras_attention.inference.source_ids import source_ids
from keras_attention.mechanisms import SoftmaxAttention
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer

LETTERS = "abcdefgh"
MAX_LENGTH = 21
TEXTS = ["abc hg", "", "ab", "hh gg ff ee dd cc bb aa", "c", " \t ", "ab", "fab head", "dad bag cab fed"]


@pytest.fixture(scope="module")
def tokenizer():
    rng = np.random.default_rng(4)
    words = ["".join(rng.choice(list(LETTERS), rng.integers(1, 6))) for _ in range(900)]
    return SentencePieceTokenizer.train([" ".join(words[i : i + 3]) for i in range(0, 900, 3)], vocab_size=30)


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory):
    """A run folder with an untrained model whose answers differ from text to text and end."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    size = tokenizer.vocab_size
    keras.utils.set_random_seed(1)
    model = Transformer(
        size,
        size,
        d_model=12,
        num_heads=3,
        num_encoder_layers=1,
        num_decoder_layers=2,
        max_length=MAX_LENGTH,
        tie_output=False,
    )
    model.build()
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(2 * variable)  # texts matter more
    model.output_dense.bias.assign(
        2.0 * tf.one_hot(3, size) + 2.0 * tf.one_hot(0, size)
    )  # ends, and padding, are likely
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.model")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def translator(run):
    return Translator.load(run, batch_size=3)


@pytest.fixture
def onnx_folder(tokenizer, tmp_path):
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "onnx"
    folder.mkdir()
    tokenizer.save(folder / "tokenizer.model")
    toy = OnnxToy(np.random.default_rng(7), tokenizer.vocab_size)
    toy.write(folder, max_length=MAX_LENGTH)
    return folder, toy


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_answer_limits(kind):
    lengths = np.array([2, 10, 60], np.int32)
    limits = answer_limits(tf.constant(lengths) if kind == "tensor" else lengths, 100)
    assert np.asarray(limits).tolist() == [40, 72, 100] and np.asarray(limits).dtype == np.int32


def test_source_ids_are_those_of_the_graph(tokenizer):
    texts = ["abc hg", "", "hh gg ff ee dd cc bb aa"]
    for most in (6, 50):
        ids = source_ids(tokenizer, texts, most)
        np.testing.assert_array_equal(ids, tokenizer.tokenize(texts, truncate=most))
        assert ids[1].tolist()[:2] == [2, 3] and ids.shape[1] <= most


@pytest.mark.parametrize("beams", [1, 2, 4, 9])
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6])
def test_array_search_equals_the_tensor_search(rng, beams, alpha):
    """Rows with limits of their own, one of them 0, and one whose logits become NaN."""
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1, (5, 6)).astype("float32")
    limits = [7, 0, 9, 1, 7]

    def step(tokens, state):
        logits, inner = model.step(tokens, state["inner"])
        bad = (state["row"] == 4) & (tf.shape(inner["self"]["keys"])[1] == 4)
        return tf.where(bad[:, None], np.nan, logits), {"inner": inner, "row": state["row"]}

    state = {"inner": model.state(memory), "row": tf.range(5)}
    options = {"beams": beams, "end_id": 2, "pad_id": 0, "max_new_tokens": limits, "length_penalty": alpha}
    options["forbidden"] = (5,)
    expected = beam_search(step, reorder, state, [1] * 5, **options)
    expanded = reorder(state, tf.repeat(tf.range(5), beams))
    got = array_beam_search(step, reorder, expanded, [1] * 5, **options)
    for name in ("tokens", "lengths", "overflow"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(got.scores, expected.scores, rtol=1e-6, atol=1e-6)
    assert got.scores.dtype == np.float32 and got.tokens.dtype == np.int32


def test_a_rolling_cache_which_cannot_grow_translates_too(run):
    """The answers are those of a full cache as long as none is longer than the model's `max_length`."""
    full = Translator.load(run)
    config = full.model.get_config()
    rolling = Transformer.from_config({**config, "decoder_mechanism": SoftmaxAttention(cache="rolling")})
    rolling.build()
    rolling.set_weights(full.model.get_weights())
    with pytest.raises(ValueError, match="cache='rolling' keeps a fixed number of positions"):
        rolling.init_state(tf.ones([1, 2], tf.int32))
    got = Translator(ModelBackend(rolling, full.backend.tokenizer))(TEXTS)
    assert got == full(TEXTS) and len(set(got)) > 3


@pytest.mark.parametrize("integers", ["int64", "int32"])
def test_onnx_folder(onnx_folder, tokenizer, integers):
    """Greedy and beams against lists in float64, text by text and together; ids get the graph's dtype (case 48)."""
    folder, toy = onnx_folder
    toy.vocabulary = tokenizer.vocab_size
    toy.write(folder, max_length=MAX_LENGTH, integers=integers)
    translator = Translator.load(folder, batch_size=4)
    sources = [ids[ids != 0] for ids in source_ids(tokenizer, TEXTS, MAX_LENGTH)]
    for beams in (None, 1, 3):
        answers = []
        for text, source in zip(TEXTS, sources):
            limit = int(answer_limits(np.int32(len(source)), MAX_LENGTH))
            if beams == 3:
                _, tokens = reference.beam(toy, source, 2, beams=3, end_id=3, limit=limit, alpha=0.6)[0]
            else:
                tokens, _ = reference.greedy(toy, source, 2, end_id=3, limit=limit)
            answers.append(tokenizer.decode([tokens])[0] if text.strip() else "")
        assert translator(TEXTS, beams=beams) == answers
    assert len(set(answers)) > 3
    assert translator(TEXTS, beams=3, length_penalty=6.0) != answers
    with pytest.raises(UsageError, match="length_penalty would have no effect: the search is greedy without beams of"):
        translator(TEXTS, length_penalty=6.0)


@pytest.mark.parametrize("beams", [None, 3])
def test_answers_depend_on_their_own_text_only(translator, beams):
    together = translator(TEXTS, beams=beams)
    assert [translator([text], beams=beams)[0] for text in TEXTS] == together
    assert translator(TEXTS[::-1], beams=beams) == together[::-1]
    assert together[1] == "" and together[5] == "" and len(set(together)) >= 4
    assert translator([]) == []


def test_run_folder_answers_are_those_of_the_uncached_model(translator, tokenizer):
    """Both storages of the decoding state and a whole pass for every token give the same tokens, scores to 1e-5."""
    model = translator.model
    ids = tf.constant(source_ids(tokenizer, [t for t in TEXTS if t.strip()], MAX_LENGTH))
    start, options = [2] * ids.shape[0], {"end_id": 3, "forbidden": (0, 2), "max_new_tokens": MAX_LENGTH}

    @tf.function
    def uncached():
        return greedy_uncached(lambda target: model({"source": ids, "target": target}), start, **options)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def cached(source):
        return [
            greedy(model.step, model.init_state(source, max_length=n), start, **options) for n in (None, MAX_LENGTH)
        ]

    uncached = uncached()
    for padded in (ids, tf.concat([tf.zeros([ids.shape[0], 2], tf.int32), ids], axis=1)):
        for result in cached(padded):
            np.testing.assert_array_equal(result.tokens, uncached.tokens)
            np.testing.assert_allclose(result.scores, uncached.scores, atol=1e-5)
    assert uncached.lengths.numpy().min() < MAX_LENGTH  # some end
    assert translator([t for t in TEXTS if t.strip()]) == tokenizer.decode(uncached.tokens.numpy())


def save_shouting(folder, take="text", give="text"):
    """A SavedModel that answers in capitals."""
    module = tf.Module()
    module.shift = tf.Variable("!")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, take)])
    def shout(text):
        return {give: tf.strings.upper(text) + module.shift}

    tf.saved_model.save(module, str(folder), signatures={"serving_default": shout})


def test_saved_model(tmp_path):
    """Given as a version or as the folder of versions, of which 10 is newer than 9."""
    for version in ("9", "10"):
        save_shouting(tmp_path / "m" / version)
    (tmp_path / "m" / "notes").mkdir()
    shutil.rmtree(tmp_path / "m" / "9")
    (tmp_path / "m" / "9").mkdir()
    for place in (tmp_path / "m", tmp_path / "m" / "10"):
        assert Translator.load(place, batch_size=2)(["b", "", "caf\u00e9", "a\ud800"]) == ["B!", "", "CAFé!", "A?!"]
    translator = Translator.load(tmp_path / "m")
    with pytest.raises(UsageError, match="beams=4 cannot change: leave beams out, or export the model again"):
        translator(["a"], beams=4)
    (tmp_path / "m" / "10" / "assets.extra").mkdir()
    described = {"options": {"beams": 4, "length_penalty": 0.6}}
    (tmp_path / "m" / "10" / "assets.extra" / "export.json").write_text(json.dumps(described))
    translator = Translator.load(tmp_path / "m")
    assert translator(["a"], beams=4) == ["A!"]
    with pytest.raises(UsageError, match=r"length_penalty=1\.0 cannot change"):
        translator(["a"], beams=4, length_penalty=1.0)


def test_saved_model_of_something_else(tmp_path):
    save_shouting(tmp_path / "m", take="words")
    with pytest.raises(UsageError, match=r"serving_default takes words\. Export the model with its tokenizer"):
        Translator.load(tmp_path / "m")


def damaged(folder, name, *, cut):
    """The file removed, or cut to half its length."""
    if cut:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    else:
        (folder / name).unlink()


@pytest.mark.parametrize("cut", [False, True], ids=["missing", "cut"])
def test_damaged_folders_name_the_file(run, onnx_folder, tmp_path, cut):
    save_shouting(tmp_path / "saved")
    for whole, names in (
        (run, ("model.keras", "tokenizer.model", "config.json")),
        (onnx_folder[0], ("encoder_model.onnx", "decoder_with_past_model.onnx", "tokenizer.model", "config.json")),
        (tmp_path / "saved", ("saved_model.pb", "variables/variables.index")),
    ):
        for name in names:
            folder = tmp_path / "copy"
            shutil.copytree(whole, folder)
            damaged(folder, name, cut=cut)
            with pytest.raises(UsageError) as caught:
                Translator.load(folder)
            message = str(caught.value)
            expected = f"has no {name}" if not cut else ("cannot be read", "damaged", "not a complete")
            assert any(part in message for part in ([expected] if not cut else expected)), message
            assert str(folder) in message and "\n" not in message
            shutil.rmtree(folder)


def test_places_that_hold_no_model(tmp_path):
    with pytest.raises(UsageError, match=r"does not exist\. Give a run folder"):
        Translator.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"is a file\. Give the folder"):
        Translator.load(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no model\. Expected a translation model: a run folder"):
        Translator.load(tmp_path / "empty")


def test_onnx_config(onnx_folder):
    """The exported width is the default one; what cannot be is named."""
    folder, _ = onnx_folder
    three = Translator.load(folder)(TEXTS, beams=3)
    assert Translator.load(folder)(TEXTS) != three
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"num_beams": 3}))
    assert Translator.load(folder)(TEXTS) == three
    other = Translator.load(folder)(TEXTS, length_penalty=6.0)
    (folder / "export.json").write_text(json.dumps({"options": {"beams": 3, "length_penalty": 6.0}}))
    assert Translator.load(folder)(TEXTS) == other != three
    (folder / "export.json").write_text(json.dumps({"options": {"length_penalty": "much"}}))
    with pytest.raises(UsageError, match=r"finite number as length_penalty\. Got 'much'"):
        Translator.load(folder)
    (folder / "export.json").unlink()
    for content, message in (
        ({}, "must say 'max_position_embeddings'.* from 2 to 2147483647. Got None"),
        ({"max_position_embeddings": "21"}, "Got '21'"),
        ({"max_position_embeddings": 1}, "Got 1;"),
    ):
        (folder / "config.json").write_text(json.dumps(content))
        with pytest.raises(UsageError, match=message):
            Translator.load(folder)


def test_any_of_several_ends_ends_an_answer(onnx_folder, tokenizer):
    """Case 63: `eos_token_id` may be a list, whose ids are no part of the text."""
    folder, toy = onnx_folder
    toy.table[::2, 5] += 8  # one end after even ids, the other after odd ones
    toy.write(folder, max_length=MAX_LENGTH)
    generation = json.loads((folder / "generation_config.json").read_text())
    for ends in ([3, 5], [5], 3):
        (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": ends}))
        known, answers, met = set(np.atleast_1d(ends).tolist()), [], set()
        for text in TEXTS:
            source = [id for id in source_ids(tokenizer, [text], MAX_LENGTH)[0] if id]
            limit = int(answer_limits(np.int32(len(source)), MAX_LENGTH))
            ids = [2]
            while len(ids) <= limit and ids[-1] not in known:
                ids.append(int(toy.log_probs(source, ids).argmax()))
            met.add(ids.pop() if ids[-1] in known else None)
            answers.append(tokenizer.decode([ids])[0] if text.strip() else "")
        assert met & known
        assert Translator.load(folder)(TEXTS) == answers
    for ends in ([], [3, "x"], "x", [True], -1, 10**12):
        (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": ends}))
        with pytest.raises(
            UsageError, match=r"generation_config\.json must say 'eos_token_id', an id or a list of ids"
        ):
            Translator.load(folder)


def test_a_tokenizer_of_another_onnx_model_is_refused(onnx_folder):
    """Case 108."""
    folder, _ = onnx_folder
    SentencePieceTokenizer.train(["abc", "bcd", "aef"] * 9, vocab_size=12).save(folder / "tokenizer.model")
    with pytest.raises(UsageError, match=r"has a tokenizer of \d+ ids for a model of \d+: they were not trained"):
        Translator.load(folder)


@pytest.mark.parametrize("name", ["max_position_embeddings", "num_beams", "decoder_start_token_id", "pad_token_id"])
def test_numbers_of_an_onnx_folder_are_checked(onnx_folder, name):
    """Case 113."""
    folder, _ = onnx_folder
    generation = json.loads((folder / "generation_config.json").read_text())
    for value in (10**12, -1, "x", [1], 1.5, True):
        (folder / "generation_config.json").write_text(json.dumps(generation | {name: value}))
        with pytest.raises(UsageError, match=rf"generation_config\.json must say '{name}', a whole number from"):
            Translator.load(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    for options in (None, [], {"length_penalty": 10**400}):
        (folder / "export.json").write_text(json.dumps({"options": options}))
        with pytest.raises(UsageError, match=r"export\.json must give a finite number as length_penalty"):
            Translator.load(folder)


def test_graphs_are_bounded_and_serve_every_penalty(run):
    """Case 115."""
    translator = Translator.load(run)
    answers = {penalty: translator(TEXTS, beams=3, length_penalty=penalty) for penalty in (-4.0, 0.0, 0.6, 8.0)}
    assert len(translator.backend._functions) == 1 and len(set(map(tuple, answers.values()))) > 1
    assert answers[0.6] == translator(TEXTS, beams=3)
    for beams in (1, 2, 3, 4, 5):
        translator(TEXTS[:1], beams=beams)
    assert list(translator.backend._functions) == [2, 3, 4, 5]


def test_bad_arguments_are_named(translator):
    with pytest.raises(TypeError, match=r"write translator\(\[text\]\)\[0\]"):
        translator("abc")
    with pytest.raises(TypeError, match="Got a int in it: 3"):
        translator(["abc", 3])
    with pytest.raises(ValueError, match=r"beams must be a whole number of at least 1\. Got 0"):
        translator(["abc"], beams=0)
    with pytest.raises(UsageError, match="length_penalty would have no effect: the search is greedy without beams of"):
        translator(["abc"], length_penalty=1.0)
    with pytest.raises(ValueError, match="batch_size must be a whole number"):
        Translator(translator.backend, batch_size=0)
