"""Where a model of images looks: attention rollout and the maps of single heads, laid over the picture."""

import io
from pathlib import Path

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.ops.basics import checks

HEADS = {"mean": np.mean, "max": np.max, "min": np.min}
# From little to much: black, violet, red, yellow, white. Lightness grows all the way, so that it reads in grey too.
_COLOURS = np.array([[0, 0, 0], [80, 18, 123], [205, 55, 60], [250, 185, 60], [252, 255, 235]], np.float64)


def attention_rollout(scores, *, heads="mean"):
    """How much of each input token has reached each token after all layers.

    Every layer's weights are averaged over the heads, mixed half and half with the identity (the way around attention),
    normalized to rows that sum to 1, and multiplied from the first layer to the last.

    Args:
        scores: weights of attention of each layer from the first to the last: a list of [B, H, T, T], as
            `ViT.attention_scores` gives them.
        heads: how the heads become one: "mean" (the paper), "max" or "min".

    Returns:
        NumPy float64 [B, T, T]: row t holds the shares of the input tokens in token t; rows sum to 1.

    Reference: Abnar and Zuidema, "Quantifying Attention Flow in Transformers", 2020, https://arxiv.org/abs/2005.00928
    """
    join = HEADS[checks.one_of("heads", heads, tuple(HEADS))]
    if not len(scores):
        raise ValueError("scores must hold the weights of at least one layer. Got none.")
    rollout = None
    for layer in scores:
        layer = np.asarray(layer).astype(np.float64)
        if layer.ndim != 4 or layer.shape[-1] != layer.shape[-2]:
            raise ValueError(f"scores must be a list of tensors [B, H, T, T]. Got one of shape {layer.shape}.")
        mixed = join(layer, axis=1) + np.eye(layer.shape[-1])
        mixed /= mixed.sum(-1, keepdims=True)
        rollout = mixed if rollout is None else mixed @ rollout
    return rollout


def rollout_map(model, images, *, heads="mean"):
    """The rollout of what a model's answer is read off: its class token, or the mean of the patches.

    Args:
        model: a `ViT` or `HybridViT` whose mechanism gives scores.
        images: floating [B, H, W, C], normalized as in training.
        heads: see `attention_rollout`.

    Returns:
        NumPy float64 [B, rows, columns]: the share of each patch.
    """
    return _patches(model, images, attention_rollout(_scores(model, images), heads=heads))


def head_maps(model, images):
    """The weights with which each head reads the patches, for the class token or on average over the patches.

    Args:
        model, images: see `rollout_map`.

    Returns:
        NumPy float64 [layers, B, H, rows, columns].
    """
    return np.stack([_patches(model, images, np.asarray(x).astype(np.float64)) for x in _scores(model, images)])


def overlay(picture, weights, *, strength=0.6, size=None):
    """A map laid over a picture: brighter and warmer where the map is larger.

    Args:
        picture: uint8 [H, W], [H, W, 1] or [H, W, 3].
        weights: [rows, columns], any numbers; the least is drawn as 0 and the largest as 1.
        strength: share of the map's colour in the result, above 0 and at most 1.
        size: (height, width) of the picture's pixels that the map covers, where its last patches reach over the edge;
            H and W by default.

    Returns:
        uint8 [H, W, 3].
    """
    image = _image_library()
    picture = np.asarray(picture)
    if (
        picture.dtype != np.uint8
        or picture.ndim not in (2, 3)
        or (picture.ndim == 3 and picture.shape[-1] not in (1, 3))
    ):
        raise ValueError(
            f"picture must be uint8 [H, W], [H, W, 1] or [H, W, 3]. Got {picture.dtype} {picture.shape}: scale it to "
            "0 ... 255 and cast it."
        )
    if not 0 < strength <= 1:
        raise ValueError(f"strength must be above 0 and at most 1. Got strength={strength}.")
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 2 or not np.isfinite(weights).all():
        raise ValueError(f"weights must be finite numbers [rows, columns]. Got shape {weights.shape}.")
    picture = np.broadcast_to(picture.reshape(*picture.shape[:2], -1), (*picture.shape[:2], 3))
    height, width = picture.shape[:2]
    spread = weights.max() - weights.min()
    weights = (weights - weights.min()) / spread if spread > 0 else np.zeros_like(weights)
    covered_height, covered_width = size or (height, width)
    whole = image.fromarray(weights.astype(np.float32))
    whole = np.asarray(whole.resize((covered_width, covered_height), image.Resampling.BICUBIC))
    whole = np.clip(whole[:height, :width], 0, 1)
    stops = np.linspace(0, 1, len(_COLOURS))
    colour = np.stack([np.interp(whole, stops, _COLOURS[:, channel]) for channel in range(3)], axis=-1)
    return np.clip(np.round(picture * (1 - strength) + colour * strength), 0, 255).astype(np.uint8)


def save_attention_pictures(model, image, folder, *, picture=None, heads="mean", strength=0.6):
    """Writes the rollout and every head's map over one image as PNG files.

    Args:
        model: see `rollout_map`.
        image: floating [H, W, C], normalized as in training.
        folder: made if it is missing; files of these names are replaced.
        picture: uint8 [h, w, 3] or [h, w, 1] to draw on, of any size; `image`, stretched to 0 ... 255, by default.
        heads, strength: see `attention_rollout` and `overlay`.

    Returns:
        List of the paths written: rollout.png, and layer_00.png ... with the heads of each layer side by side.
    """
    image = np.asarray(image)
    if image.ndim != 3:
        raise ValueError(f"image must have shape [H, W, C]. Got {image.shape}.")
    batch = image[None]
    rollout, maps = rollout_map(model, batch, heads=heads)[0], head_maps(model, batch)[:, 0]
    if picture is None:
        picture = _stretched(image)
    height, width = np.asarray(picture).shape[:2]
    rows, columns = rollout.shape
    # The last patches may reach over the edge of the image: by as much, in pixels of the picture.
    patch = model.patch_size
    size = (round(rows * patch[0] / image.shape[0] * height), round(columns * patch[1] / image.shape[1] * width))
    drawn = {"rollout.png": overlay(picture, rollout, strength=strength, size=size)}
    for i, layer in enumerate(maps):
        tiles = [overlay(picture, head, strength=strength, size=size) for head in layer]
        drawn[f"layer_{i:02}.png"] = np.concatenate(tiles, axis=1)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, pixels in drawn.items():
        buffer = io.BytesIO()
        _image_library().fromarray(pixels).save(buffer, format="PNG")
        (folder / name).write_bytes(buffer.getvalue())
        paths.append(folder / name)
    return paths


def _scores(model, images):
    if not hasattr(model, "attention_scores"):
        raise UsageError(
            f"{type(model).__name__} has no attention over one grid of patches to draw: give a ViT or a HybridViT."
        )
    return model.attention_scores(images)


def _patches(model, images, weights):
    """What the answer is read off, from [B, ..., T, T] to [B, ..., rows, columns]."""
    prefix = model.num_prefix_tokens
    rows = weights[..., 0, :] if prefix else weights.mean(-2)
    return rows[..., prefix:].reshape(*rows.shape[:-1], *model.token_grid(*np.shape(images)[1:3]))


def _stretched(image):
    spread = image.max() - image.min()
    image = (image - image.min()) / (spread if spread > 0 else 1)
    image = image if image.shape[-1] in (1, 3) else image.mean(-1, keepdims=True)
    return np.round(image * 255).astype(np.uint8)


def _image_library():
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            f"Pictures need a package that cannot be imported ({error}): pip install keras-attention[vision]"
        ) from None
    return Image
