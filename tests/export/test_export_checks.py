"""The check of an export: what it compares in small models, ties of answers, and options that would do nothing."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_language_model import TinyLanguageModel

from keras_attention.errors import UsageError
from keras_attention.export import export_onnx, export_saved_model, folders
from keras_attention.export.comparing import answer_scores
from keras_attention.export.precision import in_float32, precision_of
from keras_attention.export.quiet import quiet
from keras_attention.export.report import Comparison
from keras_attention.export.signatures import capacity_of
from keras_attention.generation.best_search import best_answer
from keras_attention.models import Transformer

IDS = tf.TensorSpec([None, None], tf.int32, "ids")


def transformer(max_length, **options):
    keras.utils.set_random_seed(5)
    sizes = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "mlp_dim": 8}
    model = Transformer(14, 17, max_length=max_length, **sizes, **options)
    model.build()
    return model


def own_model():
    x = keras.Input((3,), name="x")
    return keras.Model(x, keras.layers.Dense(2, name="scores")(x))


# --- answers -------------------------------------------------------------------------------------------------------


def answers(*rows):
    return {"tokens": np.array(rows), "lengths": np.full(len(rows), 2), "scores": np.full(len(rows), -1.5, np.float32)}


def test_other_tokens_of_equal_scores_fail_unless_they_tie_for_keras_too():
    got, want = answers([5, 3], [6, 3]), answers([5, 3], [7, 3])
    with pytest.raises(UsageError, match=r"answers of row 1 is \[6, 3\], Keras gives \[7, 3\]"):
        Comparison("float32").answers("answers", got, want, lambda tokens, lengths: [-1.5, -1.51])
    Comparison("float32").answers("answers", got, want, lambda tokens, lengths: [-1.5, -1.50001])
    Comparison("float32").answers("answers", got, got, None)  # equal tokens need no second look


@pytest.mark.parametrize("beams", [1, 3])
def test_answers_get_the_scores_of_the_search(rng, beams):
    model, options = transformer(9), {"beams": beams, "length_penalty": 1.3}
    state = model.init_state(tf.constant(rng.integers(4, 14, (3, 5)), tf.int32))
    found = best_answer(model, state, limits=tf.constant([6, 2, 4]), **options)
    scores = answer_scores(model, state, found.tokens.numpy(), found.lengths.numpy(), **options)
    np.testing.assert_allclose(scores, found.scores, rtol=1e-5)


def test_infinities_and_text_are_compared_as_they_are():
    comparison = Comparison("float32", nan_is_meant=True)
    comparison.numbers("logits", [-np.inf, 1.5, np.nan], [-np.inf, 1.50001, np.nan])
    assert 5e-6 < comparison.differences["logits"] < 2e-5
    for got in ([np.inf, 1.5, np.nan], [3.0, 1.5, np.nan], [-np.inf, 1.5, 0.0]):
        with pytest.raises(UsageError, match="logits differs from Keras by"):
            Comparison("float32", nan_is_meant=True).numbers("logits", got, [-np.inf, 1.5, np.nan])
    for want, meant in (([1.5, np.nan], False), ([np.nan, np.nan], True)):
        with pytest.raises(UsageError, match="logits is NaN in Keras itself: there is nothing to compare with"):
            Comparison("float32", nan_is_meant=meant).numbers("logits", want, want)
    comparison.numbers("nothing", np.zeros((0, 3)), np.zeros((0, 3)))
    comparison.numbers("label", np.array([b"12", b"cat"], object), np.array([b"12", b"cat"], object))
    with pytest.raises(UsageError, match="the text of label differs"):
        comparison.numbers("label", np.array([b"12", b"dog"], object), np.array([b"12", b"cat"], object))


def test_the_precision_of_a_loaded_model_is_that_of_its_layers(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    layers = [keras.layers.Dense(4), keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])]
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(2, dtype="float32")])
    model.save(tmp_path / "model.keras")
    keras.config.set_dtype_policy("float32")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert precision_of(loaded) == precision_of(model) == "float16"
    assert precision_of(keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])) == "float32"
    assert precision_of(transformer(4, dtype="mixed_bfloat16")) == "bfloat16"
    copy = in_float32(loaded)
    assert precision_of(copy) == "float32"
    for one, other in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


# --- folders -------------------------------------------------------------------------------------------------------


def test_two_exports_to_one_place_do_not_meet(tmp_path):
    place = tmp_path / "model"
    with folders.beside(place) as first:
        (first / "a").write_text("1")
        with folders.beside(place) as second:
            assert first != second and first.name.startswith(".") and second.name.startswith(".")
            (second / "a").write_text("2")
            assert folders.move_as_version(second, place) == place / "1"
        assert (first / "a").read_text() == "1"
        folders.check_versions(place)  # what is hidden is nobody's version
        with folders.beside(place) as third:
            assert third.parent == place  # which may be a disk of its own
            folders.check_versions(place)
        assert folders.move_as_version(first, place) == place / "2"
    assert sorted(entry.name for entry in place.iterdir()) == ["1", "2"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    (place / "notes").mkdir()
    with pytest.raises(UsageError, match=r"is not a folder of SavedModel versions \(it holds notes\)"):
        folders.check_versions(place)


# --- small models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 4])
def test_small_states_are_checked_to_their_end(tmp_path, capacity):
    report = export_saved_model(transformer(capacity), tmp_path / "model")
    assert {"prefill", "generate: scores"} <= set(report.differences)
    assert ("decode_step" in report.differences) == (capacity > 1)


def test_a_small_language_model(tmp_path):
    model = TinyLanguageModel(vocabulary=21, width=6)
    model(np.ones((1, 2), np.int32))
    report = export_saved_model(model, tmp_path / "lm", max_length=3, input_signature=IDS)
    assert "decode_step" in report.differences


def test_texts_need_room_for_a_subword():
    assert capacity_of(transformer(2), None) == 2 and capacity_of(transformer(3), None, texts=True) == 3
    with pytest.raises(UsageError, match=r"Got max_length=2; give 3 or more"):
        capacity_of(transformer(2), None, texts=True)


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (own_model, {"tokenizer": object(), "beams": 2}, "tokenizer= and beams= would have no effect"),
        (own_model, {"length_penalty": 0.6}, "length_penalty= would have no effect"),
        (lambda: transformer(8), {"input_signature": IDS}, "input_signature= would have no effect"),
        (lambda: transformer(8), {"samples": []}, "samples= would have no effect"),
        (
            lambda: transformer(8),
            {"beams": 2, "length_penalty": float("nan")},
            "length_penalty must be a finite number. Got nan",
        ),
        (lambda: transformer(8), {"beams": 0}, "beams must be a whole number of at least 1. Got 0"),
    ],
)
@pytest.mark.parametrize("export", [export_saved_model, export_onnx])
def test_options_without_effect_are_refused(tmp_path, export, make, options, message):
    if export is export_onnx:
        pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    with pytest.raises(UsageError) as caught:
        export(make(), tmp_path / "model", **options)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_penalty_of_a_greedy_search_is_refused(tmp_path):
    """Not for ONNX: its clients choose the beams, and take the penalty that is noted."""
    for beams in (None, 1):
        with pytest.raises(
            UsageError, match="length_penalty= would have no effect: the search is greedy without beams"
        ):
            export_saved_model(transformer(8), tmp_path / "model", beams=beams, length_penalty=2.0)
    assert list(tmp_path.iterdir()) == []


def test_an_output_named_as_an_input_is_refused_where_a_graph_has_one_name_for_both(tmp_path):
    pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    x = keras.Input((3,), name="x")
    model = keras.Model({"x": x}, {"x": keras.layers.Dense(2)(x)})
    with pytest.raises(UsageError, match="'x' is the name of an input and of an output, which ONNX cannot hold"):
        export_onnx(model, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []
    assert export_saved_model(model, tmp_path / "saved").largest_difference < 1e-6


def test_a_size_of_a_state_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(UsageError, match="max_length= would have no effect: the model has no decoding state"):
        export_saved_model(own_model(), tmp_path / "model", max_length=9)


def test_a_logger_speaks_again_after_the_block():
    logger = logging.getLogger("absl")
    before = logger.level
    with quiet("absl"):
        assert not logger.isEnabledFor(logging.WARNING) and logger.isEnabledFor(logging.ERROR)
    assert logger.level == before
