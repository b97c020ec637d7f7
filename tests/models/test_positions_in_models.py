"""Positions and carried scores through the models: one pass, decoding, files and both exports."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export import export_onnx, export_saved_model
from keras_attention.layers import ALiBi, DecoderBlock, EncoderBlock, RelativePositionBias, RotaryEmbedding
from keras_attention.models import DecoderLM, Transformer

B, S, T, VOCAB, D_MODEL, HEADS = 2, 6, 5, 17, 16, 2
SMALL = {"d_model": D_MODEL, "num_heads": HEADS, "mlp_dim": 12, "max_length": 12, "dropout_rate": 0.0}
OPTIONS = {
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi", "mechanism": "softmax"},
    "relative and local": {"positions": "relative", "mechanism": "local", "num_kv_heads": 1},
    "object": {"positions": RotaryEmbedding(4, layout="interleaved"), "decoder_mechanism": "linear"},
    "carried": {"residual_attention_layers": 2, "mechanism": "softmax"},
    "carried and relative": {"residual_attention_layers": 3, "positions": "relative", "norm": "post"},
    "none": {"positions": "none", "decoder_mechanism": "retention"},
}


def transformer(**options):
    depth = {"num_encoder_layers": 3, "num_decoder_layers": 3}
    model = Transformer(VOCAB, VOCAB, **{**depth, **SMALL, **options})
    model.build()
    return randomized(model)


def randomized(model):
    rng = np.random.default_rng(3)
    for w in model.trainable_variables:
        w.assign(w + rng.normal(0, 0.3, w.shape))
    return model


def ids(rng, length, rows=B):
    return rng.integers(4, VOCAB, size=(rows, length)).astype("int32")


def pairs(rng):
    return {"source": ids(rng, S), "target": ids(rng, T)}


def close(got, want, tolerance=2e-4):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


# --- the translation model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [None, 9])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_decoding_equals_one_pass(rng, options, max_length):
    model, inputs = transformer(**options), pairs(rng)
    want = model(inputs)
    state = model.init_state(inputs["source"], max_length)
    first, state = model.prefill(inputs["target"][:, :2], state)
    parts = [first]
    for t in range(2, T):
        logits, state = model.step(inputs["target"][:, t], state)
        parts.append(logits[:, None])
    close(tf.concat(parts, axis=1), want)
    beams = model.reorder(state, tf.constant([1, 0, 1]))
    token = ids(rng, 1, 3)
    again = {
        "source": inputs["source"][[1, 0, 1]],
        "target": np.concatenate([inputs["target"][[1, 0, 1]], token], axis=1),
    }
    close(model.step(token[:, 0], beams)[0], model(again)[:, -1])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_padding_on_the_left_or_right_changes_nothing(rng, options):
    model, inputs = transformer(**options), pairs(rng)
    want = model(inputs)
    zeros = np.zeros((B, 2), "int32")
    left = {name: np.concatenate([zeros, x], axis=1) for name, x in inputs.items()}
    right = {name: np.concatenate([x, zeros], axis=1) for name, x in inputs.items()}
    close(model(left)[:, 2:], want)
    close(model(right)[:, :T], want)
    _, state = model.prefill(left["target"][:, :5], model.init_state(left["source"]))
    close(model.step(inputs["target"][:, 3], state)[0], want[:, 3])


def test_the_order_of_tokens_counts_only_where_it_is_told(rng):
    inputs = pairs(rng)
    # No mirror image, in which all distances without a direction are the same.
    turned = {**inputs, "source": inputs["source"][:, [2, 0, 1, 4, 3, 5]]}
    for name, told in (("rotary", True), ("relative", True), ("alibi", True), ("none", False)):
        model = transformer(positions=name)
        difference = np.abs(model(inputs) - model(turned)).max()
        assert (difference > 1e-2) == told, name
        assert model.source_positions is None and model.target_positions is None


def test_each_stack_looks_where_it_may_and_each_block_has_its_own_table():
    model = transformer(positions="relative")
    encoders = [block.attention.positions for block in model.encoder_blocks]
    decoders = [block.attention.positions for block in model.decoder_blocks]
    assert [p.bidirectional for p in encoders] == [True] * 3 and [p.bidirectional for p in decoders] == [False] * 3
    assert len({id(p.table) for p in (*encoders, *decoders)}) == 6
    assert all(block.cross_attention.positions is None for block in model.decoder_blocks)
    given = RelativePositionBias(HEADS, 8, 9)
    model = transformer(positions=given)
    assert all(block.attention.positions.max_distance == 9 for block in model.decoder_blocks)
    assert id(given.table) not in {id(w) for w in model.variables}


def test_only_the_last_blocks_get_scores_and_only_from_the_block_before(rng, monkeypatch):
    seen = []
    for cls in (EncoderBlock, DecoderBlock):
        plain = cls.call

        def call(self, *args, plain=plain, previous_scores=None, return_raw_scores=False, **kwargs):
            seen.append((self.name, previous_scores is not None, return_raw_scores))
            options = {} if previous_scores is None else {"previous_scores": previous_scores}
            return plain(self, *args, **options, return_raw_scores=return_raw_scores, **kwargs)

        monkeypatch.setattr(cls, "call", call)
    wanted = {
        0: [(False, False), (False, False), (False, False)],
        1: [(False, False), (False, True), (True, False)],
        2: [(False, True), (True, True), (True, False)],
        3: [(False, True), (True, True), (True, False)],
    }
    for count, flags in wanted.items():
        model = Transformer(VOCAB, VOCAB, residual_attention_layers=count, **SMALL)
        model.build()
        seen.clear()
        model(pairs(rng))
        assert [(taken, given) for name, taken, given in seen if name.startswith("encoder")] == flags
        assert [(taken, given) for name, taken, given in seen if name.startswith("decoder")] == flags


def test_a_decoder_block_carries_both_kinds_of_scores(rng):
    """Against its own attentions, called one after the other."""
    options = {"norm": "post", "activation": "relu"}
    block = DecoderBlock(D_MODEL, HEADS, 12, positions="alibi", **options)
    x, memory = (rng.normal(size=(B, n, D_MODEL)).astype("float32") for n in (T, S))
    block(x, memory)
    randomized(block)
    previous = {
        "self": rng.normal(size=(B, HEADS, T, T)).astype("float32"),
        "cross": rng.normal(size=(B, HEADS, T, S)).astype("float32"),
    }
    got, raw = block(x, memory, previous_scores=previous, return_raw_scores=True)
    h, own = block.attention(x, use_causal_mask=True, previous_scores=previous["self"], return_raw_scores=True)
    y = block.attention_residual(x, h)
    h, crossed = block.cross_attention(memory, memory, y, previous_scores=previous["cross"], return_raw_scores=True)
    y = block.cross_attention_residual(y, h)
    close(got, block.feed_forward_residual(y, block.feed_forward(y)), 1e-5)
    close(raw["self"], own, 1e-6)
    close(raw["cross"], crossed, 1e-6)
    for part in previous:
        other = block(x, memory, previous_scores={part: previous[part]})
        assert np.abs(got - other).max() > 1e-3 and np.abs(block(x, memory) - other).max() > 1e-3


def test_configs_and_files_bring_everything_back(rng, tmp_path):
    for options in (OPTIONS["object"], OPTIONS["carried and relative"]):
        model, inputs = transformer(**options), pairs(rng)
        config = json.loads(json.dumps(model.get_config()))
        assert Transformer.from_config(config).get_config() == model.get_config()
        model.save(tmp_path / "m.keras")
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / "m.keras")(inputs), model(inputs))


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fit_trains_the_tables(rng, jit_compile):
    inputs, labels = pairs(rng), ids(rng, T)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = transformer(positions="relative", residual_attention_layers=2)
    tables = [block.attention.positions.table for block in (*model.encoder_blocks, *model.decoder_blocks)]
    before = [table.numpy() for table in tables]
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=jit_compile)
    history = model.fit(inputs, labels, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert all(np.abs(table - old).max() > 1e-3 for table, old in zip(tables, before, strict=True))


# --- the language model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"positions": "relative", "residual_attention_layers": 2}, {"positions": ALiBi(2)}]
)
def test_the_language_model_decodes_as_in_one_pass(rng, options):
    options = {**SMALL, **options}
    model = DecoderLM(VOCAB, num_layers=3, **options)
    model.build()
    randomized(model)
    tokens = ids(rng, T)
    want = model(tokens)
    plain = DecoderLM(VOCAB, num_layers=3, **{**options, "residual_attention_layers": 0})
    plain.build()
    plain.set_weights(model.get_weights())
    assert (np.abs(plain(tokens) - want).max() > 1e-3) == ("residual_attention_layers" in options)
    for max_length in (None, 8):
        first, state = model.prefill(tokens[:, :2], model.init_state(B, max_length))
        parts = [first]
        for t in range(2, T):
            logits, state = model.step(tokens[:, t], state)
            parts.append(logits[:, None])
        close(tf.concat(parts, axis=1), want)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"positions": "rope"}, "positions must be one of 'sinusoidal', 'learned', 'none', .*'rotary'.*Got .*'rope'"),
        ({"positions": None}, "positions must be one of 'sinusoidal'"),
        (
            {"positions": "rotary", "encoder_mechanism": "nystrom"},
            "'nystrom' does not support positions='rotary'; use ",
        ),
        ({"positions": "alibi", "decoder_mechanism": "linear"}, "'linear' does not support positions='alibi'; use "),
        ({"residual_attention_layers": 4}, "Got residual_attention_layers=4, num_encoder_layers=3"),
        ({"residual_attention_layers": 1, "num_decoder_layers": 1}, "at least two.*num_decoder_layers=1"),
        ({"residual_attention_layers": -1}, "must be an integer of at least 0"),
        ({"residual_attention_layers": 1, "remat": True}, "remat=True keeps nothing: give one of them"),
        (
            {"residual_attention_layers": 1, "decoder_mechanism": "local"},
            "'local' does not support residual_attention_layers=1; use mechanism='softmax'",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        Transformer(VOCAB, VOCAB, **{**SMALL, **options})


def test_a_decoder_block_says_whose_scores_it_takes(rng):
    block, x = DecoderBlock(D_MODEL, HEADS, 12), rng.normal(size=(B, T, D_MODEL)).astype("float32")
    scores = np.zeros((B, HEADS, T, T), "float32")
    for given, named in (({"itself": scores}, r"\['itself'\]"), (scores, "Tensor")):
        with pytest.raises(ValueError, match=rf'a dict with the scores of "self" and "cross". Got .*{named}'):
            block(x, x, previous_scores=given)


def test_a_checkpointed_block_refuses_scores(rng):
    block = EncoderBlock(D_MODEL, HEADS, 12, remat=True)
    x = rng.normal(size=(B, T, D_MODEL)).astype("float32")
    assert len(block(x, return_raw_scores=True)) == 2  # nothing is kept outside training
    with pytest.raises(ValueError, match=r"remat=True keeps nothing.*Make it with remat=False"):
        block(x, return_raw_scores=True, training=True)


# --- exports and the command ---------------------------------------------------------------------------------------


def test_a_saved_model_counts_positions_in_every_kind_of_state(tmp_path):
    """Rotary positions beside a state of sums, which by itself counts nothing."""
    depth = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = transformer(positions="rotary", decoder_mechanism="linear", num_kv_heads=1, **depth)
    report = export_saved_model(model, tmp_path / "model")
    assert report.largest_difference < 1e-3  # of one pass, of steps and of whole answers
    served = tf.saved_model.load(str(report.path)).signatures
    assert served["decode_step"].structured_outputs["layers.0.self.position"].dtype == tf.int32


def test_an_onnx_folder_has_biases_and_carried_scores(tmp_path):
    pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    depth = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    # One key head beside a bias: the first step then joined its keys to an empty past as if that held one.
    model = transformer(positions="relative", residual_attention_layers=2, num_kv_heads=1, **depth)
    report = export_onnx(model, tmp_path / "model")
    assert report.largest_difference < 1e-3  # of encoder, decoder, steps and whole answers
