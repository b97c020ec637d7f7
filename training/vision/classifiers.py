"""The models that `train image-classifier` knows, by name."""

import functools

import keras

from keras_attention import mechanisms, models
from keras_attention.errors import UsageError


def build_model(name, settings, task, *, dropout=0.0, seed=None):
    """A built classifier of the images of a task.

    Args:
        name: a key of `BUILDERS`.
        settings: dict as `VisionOptions.chosen` gives it.
        task: `ImageTask`.
        dropout: rate of dropout.
        seed: of dropout; initial weights come from Keras' global one.

    Returns:
        `keras.Model` from normalized images float32 [B, H, W, C] to logits float32 [B, N].

    Raises:
        ValueError, TypeError: sizes that do not fit together, in the model's own words.
    """
    shape = (task.height, task.width, task.channels)
    if name != "cnn":
        check_patch(settings["patch_size"], task)
    model = BUILDERS[name](shape, len(task.labels), settings, dropout, seed)
    # Of one image, so that what a mechanism cannot take is an error now.
    model(keras.ops.zeros((1, *shape)))
    return model


def check_patch(patch_size, images):
    """Raises a `UsageError` where a patch has no place in the images (an `ImageTask` or `ImageInput`)."""
    smaller = min(images.height, images.width)
    if patch_size > smaller:
        raise UsageError(
            f"--patch-size {patch_size} is larger than the images, {images.height} x {images.width}. Give at most "
            f"{smaller}, or a larger --image-size."
        )


def _vit(shape, count, settings, dropout, seed, *, model=models.ViT):
    """A ViT, or with `HybridViT` four convolutions and then `layers` encoder blocks on the grid of patches."""
    return model(
        shape[:2],
        settings["patch_size"],
        count,
        d_model=settings["d_model"],
        num_layers=settings["layers"],
        num_heads=settings["heads"],
        mlp_dim=settings["mlp_dim"],
        pooling=settings["pooling"],
        **_common(shape, settings, dropout, seed),
    )


def _swin(shape, count, settings, dropout, seed):
    """A pyramid whose last stage has the width and the heads, and is one window high where its layers allow it."""
    grid = -(-max(shape[:2]) // settings["patch_size"])
    window = next((size for size in (7, 8, 4) if grid % size == 0), 7)
    stages = 1
    while stages < min(4, settings["layers"]) and -(-grid // 2**stages) >= window:
        stages += 1
    below = [2 ** (stages - 1 - i) for i in range(stages)]
    width = max(1, settings["d_model"] // below[0])
    # Where the layers do not divide into stages, the later ones have more.
    depths = [settings["layers"] * (i + 1) // stages - settings["layers"] * i // stages for i in range(stages)]
    heads = [settings["heads"] // n if settings["heads"] % n == 0 else 1 for n in below]
    return models.SwinTransformer(
        shape[:2],
        settings["patch_size"],
        count,
        window_size=window,
        d_model=width,
        depths=depths,
        num_heads=heads,
        mlp_ratio=settings["mlp_dim"] / settings["d_model"],
        **_common(shape, settings, dropout, seed),
    )


def _common(shape, settings, dropout, seed):
    return {
        "channels": shape[2],
        "mechanism": _mechanism(settings["mechanism"]),
        "dropout_rate": dropout,
        "drop_path_rate": settings["drop_path"],
        "seed": seed,
    }


def _mechanism(text):
    """The mechanism that an option describes: a name, or a name with options."""
    return mechanisms.from_text(text) if ":" in text else text


def _cnn(shape, count, settings, dropout, seed):
    """A plain convolutional classifier in the manner of VGG with batch normalization.

    `layers` convolutions of 3 x 3 in three stages of a quarter, half and all of the width, each stage but the first
    at half the size; the mean over the image; one dense layer. (Simonyan and Zisserman, 2014,
    https://arxiv.org/abs/1409.1556; Ioffe and Szegedy, 2015, https://arxiv.org/abs/1502.03167.)
    """
    layers = [keras.Input(shape)]
    total, width = settings["layers"], settings["d_model"]
    for number in range(total):
        stage = 3 * number // total
        if number and stage > 3 * (number - 1) // total:
            layers.append(keras.layers.MaxPooling2D(padding="same"))
        filters = max(1, width * 2**stage // 4)
        layers += [
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, kernel_initializer="he_normal"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
        ]
    layers += [
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(dropout, seed=seed),
        keras.layers.Dense(count, dtype="float32"),
    ]
    return keras.Sequential(layers, name="cnn")


BUILDERS = {"vit": _vit, "hybrid": functools.partial(_vit, model=models.HybridViT), "swin": _swin, "cnn": _cnn}
