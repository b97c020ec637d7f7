"""Attention rollout and pictures of it."""

import builtins

import numpy as np
import pytest
from PIL import Image

from keras_attention.diagnostics import attention_rollout, head_maps, overlay, rollout_map, save_attention_pictures
from keras_attention.errors import UsageError
from keras_attention.models import HybridViT, SwinTransformer, ViT

H, W, PATCH = 10, 7, (4, 3)  # neither side is a multiple of the patch


def weights(rng, *shape):
    x = np.exp(rng.normal(size=shape))
    return x / x.sum(-1, keepdims=True)


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_rollout_equals_a_walk_over_all_paths(rng, heads):
    """Each share is the sum over all paths through the layers of the product of their steps."""
    B, H, T = 2, 3, 4
    layers = [weights(rng, B, H, T, T) for _ in range(3)]
    want = np.zeros((B, T, T))
    for b in range(B):
        steps = []
        for layer in layers:
            step = np.zeros((T, T))
            for t, s in np.ndindex(T, T):
                values = [layer[b, h, t, s] for h in range(H)]
                step[t, s] = {"mean": sum(values) / H, "max": max(values), "min": min(values)}[heads] + (t == s)
            steps.append([[x / sum(row) for x in row] for row in step])
        for t, m, n, s in np.ndindex(T, T, T, T):
            want[b, t, s] += steps[2][t][m] * steps[1][m][n] * steps[0][n][s]
    got = attention_rollout([layer.astype("float32") for layer in layers], heads=heads)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)


def models():
    options = {"d_model": 6, "num_layers": 2, "num_heads": 3, "channels": 2}
    yield ViT((8, 8), PATCH, 5, **options)
    yield ViT((8, 8), PATCH, 5, pooling="mean", **options)
    yield HybridViT((8, 8), 4, 5, pooling="token", **options)


@pytest.mark.parametrize("model", models(), ids=lambda model: f"{model.name}-{model.pooling}")
def test_maps_are_those_of_what_the_answer_is_read_off(rng, model):
    model.build()
    x = rng.normal(size=(2, H, W, 2)).astype("float32")
    scores = [s.numpy() for s in model.attention_scores(x)]
    assert len(scores) == 2
    rows, columns = model.token_grid(H, W)
    prefix = model.num_prefix_tokens
    rollout = attention_rollout(scores)
    want = rollout[:, 0, 1:] if prefix else rollout.mean(1)
    np.testing.assert_allclose(rollout_map(model, x), want.reshape(2, rows, columns), rtol=1e-5)
    maps = head_maps(model, x)
    assert maps.shape == (2, 2, 3, rows, columns)
    want = scores[1][1, 2, 0, 1:] if prefix else scores[1][1, 2].mean(0)
    np.testing.assert_allclose(maps[1, 1, 2].reshape(-1), want, rtol=1e-5)


def test_scores_are_those_that_the_model_used(rng):
    """The values weighed by the returned scores, projected, are what the block adds."""
    model = ViT(8, 4, d_model=6, num_layers=2, num_heads=3, channels=1)
    model.build()
    for w in model.weights:
        w.assign(rng.normal(1.0 if "gamma" in w.path else 0.0, 0.4, w.shape))
    x = rng.normal(size=(1, 8, 8, 1)).astype("float32")
    state, scores = model.hidden_states(x)[1], model.attention_scores(x)[1]
    block = model.blocks[1]
    h = block.attention_residual.before(state)
    values = block.attention.split_heads(block.attention.value_projection(h), 3).numpy()
    joined = (scores.numpy() @ values).transpose(0, 2, 1, 3).reshape(1, 5, 6)
    want = block.attention.output_projection(joined)
    np.testing.assert_allclose(block.attention(h), want, atol=1e-5)


def test_overlay_is_brightest_where_the_map_is_largest(rng):
    picture = np.full((12, 8, 3), 100, np.uint8)
    drawn = overlay(picture, [[0.0, 0.0], [0.0, 5.0]])
    assert drawn.shape == picture.shape and drawn.dtype == np.uint8
    assert tuple(drawn[-1, -1]) == tuple(np.round(100 * 0.4 + 0.6 * np.array([252, 255, 235])).astype(int))
    assert drawn[0, 0].min() >= 40 and drawn[0, 0].max() < 50
    grey = rng.integers(0, 255, (5, 4), dtype=np.uint8)
    np.testing.assert_array_equal(overlay(grey, np.ones((2, 2))), overlay(grey[..., None], np.zeros((1, 3))))
    # A map that covers more than the picture is cropped, not squeezed.
    wide = overlay(picture, [[0.0, 1.0]], size=(12, 16), strength=1)
    assert wide[:, :4].max() == 0 and wide[0, -1].max() < 255


@pytest.mark.parametrize("given", [True, False], ids=["picture", "stretched"])
def test_pictures_are_written(rng, tmp_path, given):
    model = ViT(8, PATCH, d_model=6, num_layers=2, num_heads=3, channels=3)
    model.build()
    image = rng.normal(size=(H, W, 3)).astype("float32")
    picture = rng.integers(0, 255, (31, 20, 3), dtype=np.uint8) if given else None
    paths = save_attention_pictures(model, image, tmp_path / "new" / "folder", picture=picture)
    assert [path.name for path in paths] == ["rollout.png", "layer_00.png", "layer_01.png"]
    height, width = (31, 20) if given else (H, W)
    for path in paths:
        with Image.open(path) as png:
            assert png.format == "PNG" and png.size == (width if path.name == "rollout.png" else 3 * width, height)
    with Image.open(paths[0]) as png:
        covered = (round(12 / H * height), round(9 / W * width))
        base = picture if given else np.round((image - image.min()) / np.ptp(image) * 255).astype(np.uint8)
        want = overlay(base, rollout_map(model, image[None])[0], size=covered)
        np.testing.assert_array_equal(np.asarray(png), want)


def test_what_cannot_be_drawn_is_refused(rng, monkeypatch, tmp_path):
    swin = SwinTransformer(8, 2, d_model=4, depths=(1,), num_heads=(1,), window_size=2)
    with pytest.raises(
        UsageError, match=r"SwinTransformer has no attention over one grid .*: give a ViT or a HybridViT"
    ):
        rollout_map(swin, np.zeros((1, 8, 8, 3), "float32"))
    linear = ViT(8, 4, d_model=4, num_layers=1, num_heads=1, mechanism="linear")
    with pytest.raises(ValueError, match=r"'linear' does not support return_attention_scores"):
        rollout_map(linear, np.zeros((1, 8, 8, 3), "float32"))
    for call, match in (
        (lambda: attention_rollout([]), r"at least one layer"),
        (lambda: attention_rollout([np.zeros((1, 2, 3, 4))]), r"\[B, H, T, T\]\. Got one of shape \(1, 2, 3, 4\)"),
        (
            lambda: attention_rollout([np.zeros((1, 2, 3, 3))], heads="sum"),
            r"heads must be one of 'mean', 'max', 'min'",
        ),
        (lambda: overlay(np.zeros((4, 4, 3)), np.ones((2, 2))), r"picture must be uint8.*Got float64 \(4, 4, 3\)"),
        (lambda: overlay(np.zeros((4, 4), np.uint8), [[np.nan]]), r"weights must be finite"),
        (lambda: overlay(np.zeros((4, 4), np.uint8), [[1.0]], strength=2), r"strength must be above 0 and at most 1"),
        (
            lambda: save_attention_pictures(linear, np.zeros((1, 8, 8, 3)), tmp_path),
            r"image must have shape \[H, W, C\]",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    real = builtins.__import__

    def without_pillow(name, *args, **kwargs):
        if name == "PIL":
            raise ImportError("No module named 'PIL'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(UsageError, match=r"pip install keras-attention\[vision\]"):
        overlay(np.zeros((4, 4), np.uint8), [[1.0]])
