"""The CLIP models that `train clip` makes, by the name of their image tower."""

import keras

from keras_attention import mechanisms
from keras_attention.models import CLIP, HybridViT, SwinTransformer, TextEncoder, ViT
from keras_attention.training.vision.classifiers import check_patch


def build_clip(options, images, vocab_size):
    """A built `CLIP` for the images and the tokenizer of a run.

    Args:
        options: `ClipOptions`.
        images: `ImageInput`.
        vocab_size: ids of the tokenizer.

    Raises:
        ValueError, TypeError: sizes that do not fit together, in the model's own words.
    """
    size = (images.height, images.width)
    check_patch(options.patch_size, images)
    given = options.mechanism
    shared = {
        "channels": images.channels,
        "mechanism": mechanisms.from_text(given) if ":" in given else given,
        "dropout_rate": options.dropout,
        "seed": options.seed,
        "name": "image_tower",
    }
    image_tower = IMAGE_TOWERS[options.model](size, options, shared)
    text_tower = TextEncoder(
        vocab_size,
        d_model=options.d_model,
        num_heads=options.heads,
        num_layers=options.text_layers,
        max_length=options.max_length,
        dropout_rate=options.dropout,
        seed=options.seed + 1000,  # the image tower's blocks have the seeds before it
        name="text_tower",
    )
    model = CLIP(image_tower, text_tower, projection_dim=options.projection_dim)
    model.build()
    # Of one image, so that what a mechanism cannot take is an error now.
    model.encode_image(keras.ops.zeros((1, *size, images.channels)))
    return model


def _vit(size, options, shared):
    return ViT(
        size,
        options.patch_size,
        d_model=options.d_model,
        num_layers=options.layers,
        num_heads=options.heads,
        pooling="mean",
        **shared,
    )


def _hybrid(size, options, shared):
    return HybridViT(
        size,
        options.patch_size,
        d_model=options.d_model,
        # Each halves the sides, down to the grid of a ViT with the same patches.
        num_conv_layers=max(1, options.patch_size.bit_length() - 1),
        num_layers=options.layers,
        num_heads=options.heads,
        **shared,
    )


def _swin(size, options, shared):
    """Two stages, the second with the width, heads and grid that the others have throughout."""
    for name in ("d_model", "heads", "patch_size"):
        if getattr(options, name) % 2:
            raise ValueError(
                f"--{name.replace('_', '-')} must be even for --model swin, whose first stage has half of it."
            )
    return SwinTransformer(
        size,
        options.patch_size // 2,
        window_size=4,
        d_model=options.d_model // 2,
        depths=(max(1, options.layers // 2), max(1, options.layers - options.layers // 2)),
        num_heads=(options.heads // 2, options.heads),
        **shared,
    )


IMAGE_TOWERS = {"vit": _vit, "hybrid": _hybrid, "swin": _swin}
