"""What Keras asks of every layer and model: configs, files of weights, and a first call of any kind."""

import inspect
import re

import keras
import numpy as np
import parts
import pytest
import tensorflow as tf

from keras_attention import layers, models
from keras_attention.generation.continuation import continue_greedily
from keras_attention.layers.dropout import Dropout
from keras_attention.mechanisms import LocalAttention
from keras_attention.mechanisms.base import Mechanism
from keras_attention.models.configured import ConfiguredModel
from keras_attention.recorded import Recorded

by_name = pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.name)
models_by_name = pytest.mark.parametrize("part", parts.MODELS, ids=lambda part: part.name)
# What Keras resolves, so that another value than the given one stands in a config.
OBJECTS = ("initializer", "tower", "mechanism", "positions")


def test_every_part_is_here():
    known = {cls for room in (layers, models) for cls in vars(room).values() if inspect.isclass(cls)} | {Dropout}
    assert {part.cls for part in parts.PARTS} == known


@by_name
def test_a_config_holds_every_argument_and_makes_the_same_layer(part):
    made = part.make(name="own", dtype="mixed_bfloat16")
    config = made.get_config()
    signature = {}
    for cls in reversed(part.cls.__mro__):
        if "__init__" in vars(cls) and issubclass(cls, (Recorded, Dropout)):
            signature |= inspect.signature(vars(cls)["__init__"]).parameters
    arguments = {name: p for name, p in signature.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    arguments.pop("self", None)
    assert set(arguments) <= set(config)
    for name, value in part.arguments.items():
        if not name.endswith(OBJECTS):
            assert config[name] == (list(value) if isinstance(value, tuple) else value), name
    again = type(made).from_config(config)
    assert again.get_config() == config and again.name == "own"
    # And of no argument that only stands at its default it would be seen that it is lost.
    exempt = {"residual_attention_layers", "remat", "num_kv_heads", "attention_dropout_rate", "head_dim"}
    for name, parameter in arguments.items():
        if parameter.default is not parameter.empty and name not in exempt:
            assert name in part.arguments and config[name] != parameter.default, name


def test_a_subclass_with_fewer_arguments_records_what_it_gives_its_base():
    class Narrow(layers.FeedForward):
        def __init__(self, mlp_dim=6, **kwargs):
            super().__init__(2 * mlp_dim, dropout_rate=0.1, **kwargs)

    config = Narrow(activation="gelu").get_config()
    assert (config["mlp_dim"], config["dropout_rate"], config["activation"]) == (12, 0.1, "gelu")
    retnet = models.RetNet(13, d_model=16, num_heads=2, num_layers=1)
    assert retnet.get_config()["mlp_dim"] == 32 and retnet.get_config()["positions"] == "none"


def test_nothing_given_is_kept_as_a_part():
    given = LocalAttention(radius=2)
    block = layers.EncoderBlock(8, 2, 12, mechanism=given)
    assert given not in block._flatten_layers() and block.get_config()["mechanism"]["config"]["radius"] == 2
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'mlp_dim'"):
        layers.FeedForward()


# --- files of weights, case 89 ----------------------------------------------------------------------------------------


@models_by_name
def test_weights_go_through_a_file_into_an_unbuilt_model(part, rng, tmp_path):
    model, inputs = part.make(), part.inputs(rng)
    want = parts.call(model, inputs)
    model.save_weights(tmp_path / "m.weights.h5")
    other = part.make()
    other.load_weights(tmp_path / "m.weights.h5")
    for x, y in zip(parts.call(other, inputs), want, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("part", parts.LAYERS, ids=lambda part: part.name)
def test_weights_of_a_layer_go_through_a_file(part, rng, tmp_path):
    def model(layer):
        holder = keras.Sequential(name="holder")
        holder.layer = layer
        holder.built = True
        return holder

    one, other, inputs = part.make(), part.make(), part.inputs(rng)
    want, _ = parts.call(one, inputs), parts.call(other, inputs)
    model(one).save_weights(tmp_path / "m.weights.h5")
    model(other).load_weights(tmp_path / "m.weights.h5")
    for x, y in zip(parts.call(other, inputs), want, strict=True):
        np.testing.assert_array_equal(x, y)


def _swin(depths):
    return models.SwinTransformer(
        16, 2, 3, window_size=4, d_model=8, depths=depths, num_heads=(2,) * len(depths), drop_path_rate=0.0
    )


def test_swin_of_two_stages_loads_what_a_checkpoint_saved(rng, tmp_path):
    model, path = _swin((1, 1)), tmp_path / "swin.weights.h5"
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = rng.normal(size=(2, 16, 16, 3)).astype("float32")
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(images, np.array([0, 2]), verbose=0, callbacks=[save])
    other = _swin((1, 1))
    other.load_weights(path)
    np.testing.assert_array_equal(other(images), model(images))
    one_merging = _swin((1, 2))  # and as many blocks
    one_merging.build()
    with pytest.raises(ValueError, match="holds mergings of 1 layers, the model has 2"):
        _swin((1, 1, 1)).load_weights(_saved(one_merging, tmp_path))


def _saved(model, folder):
    model.save_weights(folder / "other.weights.h5")
    return folder / "other.weights.h5"


def test_a_tower_of_another_class_and_its_depth_are_found(rng, tmp_path):
    def clip(depth):
        tower = parts.Tower(13, d_model=8, num_layers=depth, num_heads=2, max_length=9)
        vision = models.ViT(8, 4, None, d_model=12, num_layers=1, num_heads=2)
        return models.CLIP(vision, tower, projection_dim=6)

    model, inputs = clip(2), parts.MODELS[-1].inputs(rng)
    want = parts.call(model, inputs)
    path = _saved(model, tmp_path)
    other = clip(2)
    other.load_weights(path)
    for x, y in zip(parts.call(other, inputs), want, strict=True):
        np.testing.assert_array_equal(x, y)
    with pytest.raises(ValueError, match="holds text_tower/blocks of 2 layers, the model has 3"):
        clip(3).load_weights(path)


# --- before the first call, case 90 -----------------------------------------------------------------------------------

IDS = np.array([[4, 5, 6], [7, 8, 0]], "int32")
IMAGES = np.random.default_rng(3).normal(size=(2, 8, 8, 3)).astype("float32")
X = np.random.default_rng(4).normal(size=(2, 3, 8)).astype("float32")


def _lm(**kwargs):
    return models.DecoderLM(13, d_model=8, num_heads=2, num_layers=1, dropout_rate=0.0, **kwargs)


def _translator(**kwargs):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return models.Transformer(13, 13, d_model=8, num_heads=2, dropout_rate=0.0, **sizes, **kwargs)


def _vit(cls=models.ViT, **kwargs):
    return cls(8, 4, 3, d_model=8, num_layers=1, num_heads=2, **kwargs)


def _clip():
    tower = models.TextEncoder(13, d_model=8, num_layers=1, num_heads=2, max_length=9)
    return models.CLIP(_headless(), tower, projection_dim=6)


def _headless():
    return models.ViT(8, 4, None, d_model=8, num_layers=1, num_heads=2)


PAIR = {"source": IDS, "target": IDS}
EARLY = {
    "continue_greedily": (_lm, lambda m: continue_greedily(m, IDS[:1], max_new_tokens=2), IDS),
    "lm prefill": (_lm, lambda m: m.prefill(tf.constant(IDS), m.init_state(2)), IDS),
    "lm step": (_lm, lambda m: m.step(tf.constant(IDS[:, 0]), m.init_state(2, 5)), IDS),
    "encode": (_translator, lambda m: m.encode(tf.constant(IDS)), PAIR),
    "init_state": (_translator, lambda m: m.init_state(tf.constant(IDS)), PAIR),
    "vit features": (_vit, lambda m: m.features(IMAGES), IMAGES),
    "vit embed": (_vit, lambda m: m.embed(IMAGES), IMAGES),
    "vit attention_scores": (_vit, lambda m: m.attention_scores(IMAGES), IMAGES),
    "hybrid attention_scores": (lambda: _vit(models.HybridViT), lambda m: m.attention_scores(IMAGES), IMAGES),
    "swin hidden_states": (lambda: _swin((1, 1)), lambda m: m.hidden_states(IMAGES), IMAGES),
    "encode_image": (_clip, lambda m: m.encode_image(IMAGES), {"images": IMAGES, "text": IDS[:, :2]}),
    "encode_text": (_clip, lambda m: m.encode_text(IDS), {"images": IMAGES, "text": IDS[:, :2]}),
    "clip scale": (_clip, lambda m: m.scale(), {"images": IMAGES, "text": IDS[:, :2]}),
    "text features": (lambda: _clip().text_tower, lambda m: m.features(IDS), IDS),
    "logits": (lambda: layers.TokenEmbedding(13, 8), lambda m: m.logits(tf.constant(X)), IDS),
    "block scores": (lambda: layers.EncoderBlock(8, 2, 12), lambda m: m.attention_scores(X), X),
    "block state": (lambda: layers.EncoderBlock(8, 2, 12), lambda m: m.init_state(2), X),
    "layer state": (lambda: layers.MultiHeadAttention(8, 2), lambda m: m.init_state(2), X),
    "before": (lambda: layers.FeedForward(6), lambda m: layers.Residual().before(X), X),
}


@pytest.mark.parametrize("name", EARLY)
def test_a_public_method_before_the_first_call_spoils_nothing(name):
    make, early, inputs = EARLY[name]
    keras.utils.set_random_seed(5)
    used = make()
    early(used)
    got = parts.call(used, (inputs,))
    keras.utils.set_random_seed(5)
    fresh = make()
    want = parts.call(fresh, (inputs,))
    assert _paths(used) == _paths(fresh)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def _paths(layer):
    """Names of weights without the numbers that Keras gives to layers of one class."""
    return [re.sub(r"_\d+(?=/)", "", weight.path) for weight in layer.weights]


def test_a_memory_is_projected_and_norms_taken_before_the_first_call():
    block = layers.DecoderBlock(8, 2, 12)
    memory = block.project_memory(tf.constant(X[..., :6]))
    assert block(X, X[..., :6]).shape == block(X, memory).shape
    residual = layers.Residual()
    residual.before(X)
    assert residual(X, X).shape == X.shape


# --- gradients of tables, case 91 -------------------------------------------------------------------------------------


@by_name
def test_gradients_are_dense(part, rng):
    layer, inputs = part.make(), part.inputs(rng)
    layer(*inputs)
    variables = [variable.value for variable in layer.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(layer(*inputs))
        loss = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float32) ** 2) for x in outputs])
    assert not [x for x in tape.gradient(loss, variables) if isinstance(x, tf.IndexedSlices)]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_a_step_of_adam_moves_nothing_by_more_than_its_rate(rng, positions, policy):
    ids = rng.integers(4, 7, (8, 5))  # every id many times
    model = models.DecoderLM(
        13, d_model=8, num_heads=2, num_layers=1, positions=positions, max_length=9, tie_output=False, dtype=policy
    )
    model.build()
    before = [keras.ops.convert_to_numpy(w) for w in model.trainable_weights]
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(ids, rng.integers(4, 7, (8, 5)), batch_size=8, verbose=0)
    moved = [abs(keras.ops.convert_to_numpy(w) - x).max() for w, x in zip(model.trainable_weights, before)]
    assert max(moved) <= 1.001e-2


# --- symbols, widths and lengths: cases 94, 97 and a note -------------------------------------------------------------


def test_grid_positions_take_a_symbol():
    out = layers.GridPositions((2, 3), 8)(keras.Input((6, 8)))
    assert isinstance(out, keras.KerasTensor) and out.shape == (None, 6, 8)


def test_a_memory_may_have_a_width_of_its_own(rng):
    x, memory = rng.normal(size=(2, 5, 8)).astype("float32"), rng.normal(size=(2, 7, 6)).astype("float32")
    called, built = layers.DecoderBlock(8, 2, 12), layers.DecoderBlock(8, 2, 12)
    assert called(x, memory).shape == (2, 5, 8)
    built.build((2, 5, 8), (2, 7, 6))
    assert built.cross_attention.key_projection.kernel.shape == (6, 8)
    built = layers.DecoderBlock(8, 2, 12)
    built.build((2, 5, 8), (2, 7, 8))
    assert built.cross_attention.key_projection.kernel.shape == (8, 8)
    assert layers.DecoderBlock(8, 2, 12)(keras.Input((5, 8)), keras.Input((7, 6))).shape == (None, 5, 8)


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
def test_learned_positions_count_real_tokens_alone(jit):
    model = models.DecoderLM(13, d_model=8, num_heads=2, num_layers=1, positions="learned", max_length=4)
    call = model if jit is None else tf.function(model, jit_compile=jit)
    padded, plain = tf.constant([[0, 0, 5, 6, 7]]), tf.constant([[5, 6, 7]])
    np.testing.assert_allclose(call(padded)[:, 2:], call(plain), rtol=1e-4, atol=1e-5)
    beyond = tf.constant([[4, 5, 6, 7, 8]])
    if jit is None:
        with pytest.raises(ValueError, match=r"positions \(max_len=4\) must lie in 0 .. 3. Got 4"):
            call(beyond)
    else:
        assert np.isnan(call(beyond)[0, 4]).all()


@pytest.mark.parametrize("max_length", [None, 6])
@pytest.mark.parametrize("mechanism", ["softmax", "blockwise", "local", "random", "linear", "retention"])
@pytest.mark.parametrize("make", [_lm, _translator], ids=["lm", "translator"])
def test_a_prompt_of_no_tokens_changes_nothing(make, mechanism, max_length):
    model = make(mechanism=mechanism)
    state = model.init_state(2 if make is _lm else tf.constant(IDS), max_length)
    logits, same = model.prefill(tf.constant(IDS[:, :0]), state)
    assert logits.shape == (2, 0, 13)
    for x, y in zip(tf.nest.flatten(same), tf.nest.flatten(state), strict=True):
        np.testing.assert_array_equal(x, y)


# --- masks at the border of a graph, case 92 --------------------------------------------------------------------------


def test_an_implicit_mask_stays_outside_of_a_tf_function(rng):
    embed, mha = keras.layers.Embedding(13, 8, mask_zero=True), layers.MultiHeadAttention(8, 2)
    x = embed(np.array([[5, 6, 0]]))

    @tf.function
    def scores(x, padding_mask=None):
        return mha(x, padding_mask=padding_mask, return_attention_scores=True)[1]

    assert not np.any(mha(x, return_attention_scores=True)[1][..., 2])
    # TensorFlow hands the tensor on without what Keras hung on it: the mask has to be given, or made inside.
    assert np.all(scores(x)[..., 2] > 0)
    assert not np.any(scores(x, x._keras_mask)[..., 2])


# --- mechanisms as text, case 101 -------------------------------------------------------------------------------------


def test_a_mechanism_is_given_as_text():
    assert layers.MultiHeadAttention(16, 2, mechanism="local:radius=3").mechanism.radius == 3
    model = models.DecoderLM(13, d_model=16, num_layers=1, mechanism="local:radius=3")
    assert model.blocks[0].attention.mechanism.radius == 3
    vit = models.ViT(8, 4, d_model=8, num_layers=1, num_heads=2, mechanism="axial:shape=[2,2],num_class_tokens=1")
    assert isinstance(vit, ConfiguredModel) and vit.blocks[0].attention.mechanism.shape == (2, 2)
    message = r"mechanism 'axial' needs its option shape: give AxialAttention\(shape=...\), or axial:shape=VALUE as"
    with pytest.raises(ValueError, match=message):
        layers.MultiHeadAttention(16, 2, mechanism="axial")
    assert isinstance(layers.MultiHeadAttention(16, 2, mechanism="relu").mechanism, Mechanism)
