"""TextGenerator over a run folder, a Keras file and both exports: one answer, and what does not fit is one line."""

import json
import shutil

import keras
import numpy as np
import pytest

from keras_attention.cli import main
from keras_attention.errors import UsageError
from keras_attention.export import export_onnx, export_saved_model
from keras_attention.generation import continue_greedily
from keras_attention.inference import TextGenerator
from keras_attention.models import DecoderLM
from keras_attention.text import ByteTokenizer

MAX_LENGTH = 19
PROMPTS = ("", "ab", "a longer one", b"\xff\x00", "ł")


def language_model(vocab_size=260, **options):
    keras.utils.set_random_seed(3)
    model = DecoderLM(vocab_size, d_model=8, num_heads=2, num_layers=2, max_length=MAX_LENGTH, **options)
    model.build()
    for variable in model.trainable_variables:
        variable.assign(3 * variable)  # bytes matter more
    return model


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """dict of layout -> path of one model."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("language")
    model, tokenizer = language_model(), ByteTokenizer()
    (folder / "run").mkdir()
    model.save(folder / "run" / "model.keras")
    config = {"kind": "language", "tokenizer": {"kind": "bytes", "offset": 4}}
    (folder / "run" / "config.json").write_text(json.dumps(config))
    export_saved_model(model, folder / "saved", tokenizer=tokenizer)
    export_onnx(model, folder / "onnx", tokenizer=tokenizer)
    return {
        "run": folder / "run",
        "keras": folder / "run" / "model.keras",
        "saved": folder / "saved",
        "onnx": folder / "onnx",
    }


def test_all_places_answer_alike(places):
    model = keras.models.load_model(places["keras"])
    answers = []
    for prompt in PROMPTS:
        ids = ByteTokenizer().encode_batch([prompt])
        wanted = continue_greedily(model, ids, max_new_tokens=6, forbidden=range(4)).tokens[0]
        answers.append(ByteTokenizer().decode(wanted))
    assert len(set(answers)) > 2
    for place in places.values():
        generator = TextGenerator.load(place)
        assert [generator(prompt, max_new_tokens=6) for prompt in PROMPTS] == answers
        assert generator("x", max_new_tokens=0) == b""


def test_the_command_takes_every_place(places, capsysbinary):
    """Case 100: `generate --model EXPORT`; bytes that are no UTF-8 come back as they went in."""
    printed = []
    for place in places.values():
        with pytest.raises(SystemExit, match="0"):
            main(["generate", "--model", str(place), "a\udcff", "--tokens", "5"])
        printed.append(capsysbinary.readouterr().out)
    assert len(set(printed)) == 1 and printed[0].startswith(b"a\xff") and len(printed[0]) == 2 + 5 + 1


def test_an_export_ends_where_its_state_ends(places):
    for name in ("saved", "onnx"):
        generator = TextGenerator.load(places[name])
        assert len(generator("a" * 10, max_new_tokens=MAX_LENGTH - 10)) == MAX_LENGTH - 10
        with pytest.raises(UsageError, match=r"longer than the decoding state of .* Ask for fewer bytes"):
            generator("a" * 10, max_new_tokens=MAX_LENGTH)


def test_exports_say_that_they_are_on_bytes(places, tmp_path):
    for place, where in (("saved", "1/assets.extra/export.json"), ("onnx", "export.json")):
        shutil.copytree(places[place], tmp_path / place)
        described = json.loads((tmp_path / place / where).read_text())
        assert described["options"] == {"max_length": MAX_LENGTH, "tokenizer": {"kind": "bytes", "offset": 4}}
        for tokenizer in ("x", None, [1], {"kind": "words"}, {"kind": "bytes", "offset": 5}):
            changed = {**described, "options": {"tokenizer": tokenizer}}
            (tmp_path / place / where).write_text(json.dumps(changed))
            with pytest.raises(UsageError, match=r"export\.json must describe a language model on bytes"):
                TextGenerator.load(tmp_path / place)
        # Exports of before do not say it: 260 ids are bytes.
        (tmp_path / place / where).write_text(json.dumps({**described, "options": {"max_length": MAX_LENGTH}}))
        assert TextGenerator.load(tmp_path / place)("ab", max_new_tokens=3) == TextGenerator.load(places[place])(
            "ab", max_new_tokens=3
        )


def test_other_vocabularies_and_weights_are_named(places, tmp_path):
    model = language_model(300)
    model.save(tmp_path / "other.keras")
    report = export_saved_model(model, tmp_path / "saved")
    for place in (tmp_path / "other.keras", report.path):
        with pytest.raises(UsageError, match=r"holds a language model of 300 ids, not one on bytes \(260 ids\)"):
            TextGenerator.load(place)
    shutil.copytree(places["run"], tmp_path / "run")
    shutil.copy(tmp_path / "other.keras", tmp_path / "run" / "model.keras")
    with pytest.raises(UsageError, match="has a tokenizer of 260 ids for a model of 300"):
        TextGenerator.load(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"kind": "language", "tokenizer": "x"}))
    with pytest.raises(UsageError, match=r"config\.json must describe a language model on bytes\. Got tokenizer 'x'"):
        TextGenerator.load(tmp_path / "run")


def test_bad_arguments_are_named(places):
    generator = TextGenerator.load(places["run"])
    with pytest.raises(TypeError, match=r"prompt must be str or bytes\. Got list"):
        generator(["a"])
    with pytest.raises(ValueError, match=r"max_new_tokens must be a whole number of at least 0\. Got -1"):
        generator("a", max_new_tokens=-1)
    learned = language_model(positions="learned")
    backend = type(generator.backend)(learned)
    with pytest.raises(UsageError):
        TextGenerator(backend)("a" * MAX_LENGTH, max_new_tokens=9)
    assert np.isfinite(learned(np.ones((1, 3), "int32"))).all()
