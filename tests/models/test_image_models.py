"""ViT, HybridViT and SwinTransformer: what every model of images must do."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable

import keras
import numpy as np
import pytest
import reference_patterns
import reference_vision
import tensorflow as tf

from keras_attention.export.onnx_folder import operations
from keras_attention.layers import ConvStem, DropPath, RelativePositionBias2D, WindowBlock
from keras_attention.models import HybridViT, SwinTransformer, ViT

H, W = 10, 7  # neither is a multiple of the patch
OTHER = (7, 17)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model under test: how it is made (further options come by keyword), and its float64 reference."""

    name: str
    make: Callable
    reference: Callable


def vit(**options):
    options = {"d_model": 6, "num_layers": 2, "num_heads": 3, "mlp_dim": 10, "channels": 2, **options}
    return ViT((H, W), (4, 3), 5, **options)


def hybrid(**options):
    options = {"d_model": 6, "num_conv_layers": 3, "num_layers": 2, "num_heads": 3, "channels": 2, **options}
    return HybridViT((H, W), 4, 5, **options)


def swin(**options):
    options = {"d_model": 4, "depths": (2, 2), "num_heads": (2, 1), "window_size": 3, "channels": 2, **options}
    return SwinTransformer((H, W), (2, 1), 5, mlp_ratio=1.5, **options)


CASES = [
    Case("vit", vit, reference_vision.vit),
    Case("hybrid", hybrid, reference_vision.hybrid),
    Case("swin", swin, reference_vision.swin),
]
every_model = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def built(model):
    """The model with weights that are all different and not small."""
    model.build()
    rng = np.random.default_rng(7)
    for w in model.trainable_variables:
        w.assign(rng.normal(1.0 if "gamma" in w.path else 0.0, 0.4, w.shape))
    return model


def pictures(rng, height=H, width=W, batch=2, channels=2):
    return rng.normal(size=(batch, height, width, channels)).astype("float32")


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)


@every_model
@pytest.mark.parametrize("size", [(H, W), OTHER, (1, 5)], ids=str)
def test_every_state_equals_the_reference(rng, case, size):
    model, x = built(case.make()), pictures(rng, *size)
    states, tokens, output = case.reference(model, x.astype("float64"))
    got = model.hidden_states(x)
    assert len(got) == len(states)
    for mine, want in zip(got, states):
        close(mine, want)
    close(model.features(x), tokens)
    logits = model(x)
    assert logits.dtype == tf.float32
    close(logits, output)


@pytest.mark.parametrize("pooling", ["token", "mean", "token_mean"])
@pytest.mark.parametrize("layer_scale", [None, 0.3])
def test_vit_pooling_and_layer_scale(rng, pooling, layer_scale):
    model = built(ViT(8, 4, d_model=6, num_layers=2, num_heads=2, channels=1, pooling=pooling, layer_scale=layer_scale))
    x = pictures(rng, 9, 5, channels=1)
    output = model(x)
    close(output, reference_vision.vit(model, x.astype("float64"))[2])
    assert output.shape == (2, model.feature_width)
    assert model.compute_output_shape((None, None, None, 1)) == (None, model.feature_width)


@pytest.mark.parametrize("pooling", ["token", "mean"])
@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_hybrid_pooling_and_positions(rng, pooling, positions):
    model, x = built(hybrid(pooling=pooling, positions=positions)), pictures(rng, *OTHER)
    close(model(x), reference_vision.hybrid(model, x.astype("float64"))[2])
    assert len(model.relative_biases) == (2 if positions == "relative" else 0)


def test_relative_bias_at_another_grid_is_that_of_a_resized_layer(rng):
    layer = RelativePositionBias2D((2, 3), 4, num_prefix_tokens=2)
    for w in layer.weights:
        w.assign(rng.normal(size=w.shape))
    for grid in ((4, 2), (1, 5)):
        np.testing.assert_allclose(layer(grid), layer.resized(grid)(), atol=1e-6)
    # A row of three: the offset 0 is still the one in the middle of the table.
    np.testing.assert_allclose(layer((1, 3))[:, 2, 2], layer.table.numpy()[7], atol=1e-6)
    np.testing.assert_array_equal(layer((2, 3)), layer())


@pytest.mark.parametrize("size", [(6, 9), (12, 3), (3, 3), (2, 12), (14, 6)], ids=str)
def test_swin_windows(rng, size):
    """Grids that fill the windows, that are no larger than one on a side, and that do not fill one."""
    model = built(SwinTransformer(8, 1, d_model=4, depths=(2,), num_heads=(2,), window_size=3, channels=1))
    x = pictures(rng, *size, channels=1)
    close(model(x), reference_vision.swin(model, x.astype("float64"))[2])


def test_mechanisms_that_cannot_take_a_bias_are_refused():
    with pytest.raises(ValueError, match=r"'linear' does not support the bias and the mask of windows"):
        swin(mechanism="linear")
    with pytest.raises(ValueError, match=r"relative position bias .* use positions='learned'"):
        hybrid(mechanism="axial")
    assert swin(mechanism="relu").blocks[0].attention.mechanism.registered_name == "relu"
    assert hybrid(mechanism="axial", positions="learned").blocks[1].attention.mechanism.shape == (3, 2)


@pytest.mark.parametrize(
    "make,match",
    [
        (lambda: HybridViT(8, 3), r"patch_size must be one of 1, 2, 4, 8, 16.* Got patch_size=3"),
        (lambda: HybridViT(8, 32), r"Got patch_size=32"),
        (lambda: HybridViT.from_preset("L/16"), r"SIZE one of Ti, S, B"),
        (lambda: SwinTransformer(8, depths=(2, 2), num_heads=(3,)), r"one number for each stage"),
        (lambda: SwinTransformer.from_preset("huge"), r"preset must be one of 'tiny', 'small', 'base', 'large'"),
        (lambda: WindowBlock(4, 2, 8, window=3, shift=3), r"shift must be smaller than window"),
        (lambda: ViT(8, 4, pooling="max"), r"pooling must be one of 'token', 'mean', 'token_mean'"),
        (lambda: ViT((8, 8, 8), 4), r"image_size must be an integer or \(height, width\)"),
        (lambda: ConvStem((3,), (1, 2)), r"one number for each convolution"),
    ],
)
def test_wrong_arguments(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize(
    "mechanism,attend",
    [
        ("axial", reference_patterns.axial_grid),
        ("local", reference_patterns.local),
        ("linformer", None),
        ("linear", None),
    ],
)
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_vit_takes_mechanisms_by_name(rng, mechanism, attend, pooling):
    model = built(vit(mechanism=mechanism, pooling=pooling))
    x = pictures(rng)
    output = model(x).numpy()
    if attend is not None:
        want = reference_vision.vit(model, x.astype("float64"), attend=attend)[2]
        close(output, want)
    twin = ViT.from_config(model.get_config())
    twin.build()
    twin.set_weights(model.get_weights())
    close(twin(x), output, 1e-6)


@every_model
def test_unknown_sizes_and_batch(rng, case):
    """One graph, traced without sizes, at two sizes and batches; the same as eager."""
    model = built(case.make())
    run = tf.function(model, input_signature=[tf.TensorSpec([None, None, None, 2])])
    for batch, size in ((2, (H, W)), (3, OTHER)):
        x = pictures(rng, *size, batch=batch)
        close(run(x), model(x).numpy(), 1e-5)
    inputs = keras.Input((None, None, 2))
    assert keras.Model(inputs, model(inputs)).output_shape == (None, 5)


@every_model
@pytest.mark.parametrize("policy,tolerance", [("mixed_float16", 2e-2), ("mixed_bfloat16", 0.15)])
def test_precisions(rng, case, policy, tolerance):
    model, half = built(case.make()), case.make(dtype=policy)
    half.build()
    half.set_weights(model.get_weights())
    x = pictures(rng, *OTHER)
    got = half(x)
    assert got.dtype == tf.float32
    assert half.features(x).dtype == policy.removeprefix("mixed_")
    assert all(w.dtype == "float32" for w in half.weights)
    want = model(x).numpy()
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@every_model
def test_gradients(rng, case):
    """Of all weights together, against differences of the float64 reference along random directions."""
    model, x = built(case.make()), pictures(rng)
    upstream = rng.normal(size=(2, 5)).astype("float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x) * upstream)
    weights = model.trainable_variables
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, weights)]
    before = [w.numpy() for w in weights]
    for _ in range(2):
        directions = [rng.normal(size=w.shape).astype("float32") for w in weights]
        sides = []
        for step in (1e-3, -1e-3):
            for w, value, direction in zip(weights, before, directions):
                w.assign(value + step * direction)
            sides.append((case.reference(model, x.astype("float64"))[2] * upstream).sum())
        want, parts = (sides[0] - sides[1]) / 2e-3, [(g * d).sum() for g, d in zip(gradients, directions)]
        np.testing.assert_allclose(sum(parts), want, rtol=5e-3, atol=5e-3 * np.linalg.norm(parts))


@pytest.mark.slow
@every_model
def test_xla_trains_alike(rng, case):
    """A training step in XLA gives the loss and gradients of eager code; dropout, which XLA draws anew, is left out."""
    x, upstream = pictures(rng, *OTHER), rng.normal(size=(2, 5)).astype("float32")
    results = []
    for compiled in (False, True):
        model = built(case.make(drop_path_rate=0.0))

        def step(x, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True) * upstream)
            return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))]

        results.append((tf.function(step, jit_compile=True) if compiled else step)(x))
    for eager, xla in zip(*results):
        np.testing.assert_allclose(xla, eager, rtol=1e-3, atol=1e-5 + 1e-3 * np.abs(eager).max())


@every_model
def test_bad_images_are_refused(case):
    model = built(case.make())
    for shape, match in (((2, 9, 9, 3), r"\[B, H, W, 2\]. Got \(2, 9, 9, 3\)"), ((2, 2, 9, 9), "channels last")):
        with pytest.raises(ValueError, match=match):
            model(np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match=r"floating and normalized.* Got uint8"):
        model(np.zeros((1, 8, 8, 2), "uint8"))


CHILD = """
import sys
import keras
import numpy as np
import keras_attention.models
folder = sys.argv[1]
x = np.load(f"{folder}/x.npy")
np.savez(f"{folder}/out.npz", **{name: keras.models.load_model(f"{folder}/{name}.keras")(x) for name in sys.argv[2:]})
"""


def test_keras_files_give_the_same_in_a_new_process(rng, tmp_path, subtests):
    x, want = pictures(rng, *OTHER), {}
    np.save(tmp_path / "x.npy", x)
    for case in CASES:
        model = built(case.make(drop_path_rate=0.1, dropout_rate=0.1, seed=3))
        want[case.name] = model(x).numpy()
        model.save(tmp_path / f"{case.name}.keras")
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), *want], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    got = np.load(tmp_path / "out.npz")
    for name in want:
        with subtests.test(name):
            np.testing.assert_array_equal(got[name], want[name])


@every_model
def test_onnx_equals_keras(rng, case):
    """A graph without sizes converts, and gives Keras' numbers at two sizes."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    tf2onnx = pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    model = built(case.make())
    spec = tf.TensorSpec([None, None, None, 2], tf.float32, name="x")
    graph, _ = tf2onnx.convert.from_function(
        tf.function(model), [spec], opset=17, custom_op_handlers=operations.handlers()
    )
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch, size in ((2, (H, W)), (3, OTHER)):
        x = pictures(rng, *size, batch=batch)
        close(session.run(None, {"x": x})[0], model(x).numpy(), 1e-5)


def test_presets():
    model = ViT.from_preset("Ti/16", image_size=32, num_classes=7, num_layers=1)
    assert (model.d_model, len(model.blocks), model.blocks[0].num_heads, model.grid) == (192, 1, 3, (2, 2))
    model = ViT.from_preset("S/16", num_classes=1000)
    model.build()
    assert model.count_params() == 22_050_664  # DeiT-S
    swin_tiny = SwinTransformer.from_preset("tiny", num_classes=1000)
    swin_tiny.build()
    assert swin_tiny.count_params() == 28_288_354  # Liu et al.: 28 M
    model = HybridViT.from_preset("S/8", image_size=(24, 16), num_conv_layers=3)
    assert (model.d_model, len(model.blocks), model.grid, model.stem.strides) == (384, 8, (3, 2), [2, 2, 2])
    assert HybridViT(28, 4).stem.channels == [24, 48, 96, 192] and HybridViT(28, 4).stem.strides == [1, 1, 2, 2]
    for wrong in ("M/16", "S16", "S/x", "S/0", 16):
        with pytest.raises(ValueError, match="A preset is SIZE/PATCH with SIZE one of Ti, S, B, L, H"):
            ViT.from_preset(wrong)


def test_dropping_paths(rng):
    """Rows are left out whole, at the rate asked for, and the mean stays."""
    layer, x = DropPath(0.25, seed=1), rng.normal(size=(4000, 2, 3)).astype("float32")
    y = layer(x, training=True).numpy()
    kept = ~(y == 0).all((1, 2))
    np.testing.assert_allclose(y[kept], x[kept] / 0.75, rtol=1e-5)
    assert 0.72 < kept.mean() < 0.78
    assert (layer(x, training=True).numpy() != y).any()
    np.testing.assert_array_equal(layer(x), x)
    assert DropPath.from_config(layer.get_config()).rate == 0.25
    model = vit(drop_path_rate=0.6, num_layers=3)
    assert [block.drop_path_rate for block in model.blocks] == [0.0, 0.3, 0.6]
