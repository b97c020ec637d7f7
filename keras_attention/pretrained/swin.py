"""The Swin Transformer's weights from Hugging Face."""

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.models import SwinTransformer
from keras_attention.ops.basics.positions import grid_offsets
from keras_attention.pretrained import image_options
from keras_attention.pretrained.hugging_face import (
    KERNEL,
    MATRIX,
    assign,
    built,
    check_arguments,
    dense,
    norm,
    projections,
    read_config,
    read_tensors,
)

# What transformers takes for granted where a config.json does not say it.
_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.1,
    "layer_norm_eps": 1e-5,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 4,
    "window_size": 7,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "use_absolute_embeddings": False,
}
_SIZES = ("embed_dim", "depths", "num_heads")
_TABLE, _INDEX = "relative_position_bias_table", "relative_position_index"
# The token that stands for masked patches in pretraining.
_IGNORED = ("embeddings.mask_token",)


def load_swin(folder, **kwargs):
    """A `SwinTransformer` with the weights of a Hugging Face SwinModel or SwinForImageClassification.

    Images are to be normalized as the folder's preprocessor_config.json says.

    Args:
        folder: holds config.json and model.safetensors (or the files of an index).
        **kwargs: arguments of `SwinTransformer` that the weights do not decide: `num_classes` (None for features;
            another number than the file's, or any where it has no head, for a new head, which is said), the rates of
            dropout, `remat`, `seed`, `name` and `dtype`.

    Returns:
        A `SwinTransformer` whose `hidden_states`, `features` and logits are the published model's
        `reshaped_hidden_states` (channels last), `last_hidden_state` and `logits`, for padded images too; without a
        head, where the file has none.

    Raises:
        UsageError: a file is missing or damaged, an option is not known here, or, with the full list, tensors that do
            not match what config.json says.

    Reference: Liu et al., "Swin Transformer", 2021, https://arxiv.org/abs/2103.14030
    """
    check_arguments(kwargs, [name for name in image_options.OPEN if name != "mechanism"], folder)
    config = {**_DEFAULTS, **read_config(folder, "swin")}
    image_options.required(config, folder, *_SIZES)
    if config["use_absolute_embeddings"]:
        raise UsageError(f"{folder}/config.json says use_absolute_embeddings, which SwinTransformer does not have.")
    tensors = image_options.split_prefix(read_tensors(folder), "swin.")
    window = config["window_size"]
    tensors = {name: _by_key(name, x) for name, x in _without_indices(tensors, window).items()}
    if not config["qkv_bias"]:
        heads = [name.removesuffix("weight") for name in tensors if name.endswith("self.query.weight")]
        heads = [name.replace("query", part) for name in heads for part in ("query", "key", "value")]
        tensors = image_options.zeros_for(tensors, [f"{h}bias" for h in heads], [f"{h}weight" for h in heads])
    num_classes, from_file, tensors = image_options.head(tensors, kwargs, folder)
    options = {
        "dropout_rate": config["hidden_dropout_prob"],
        "attention_dropout_rate": config["attention_probs_dropout_prob"],
        "drop_path_rate": config["drop_path_rate"],
        **kwargs,
        "num_classes": num_classes,
    }
    model = built(
        lambda: SwinTransformer(
            image_options.size(config["image_size"]),
            image_options.size(config["patch_size"]),
            window_size=window,
            d_model=config["embed_dim"],
            depths=config["depths"],
            num_heads=config["num_heads"],
            mlp_ratio=float(config["mlp_ratio"]),
            channels=config["num_channels"],
            activation=image_options.activation(config),
            epsilon=config["layer_norm_eps"],
            **options,
        ),
        folder,
    )
    new = [] if from_file or model.head is None else [model.head]
    assign(model, tensors, _wanted(model, from_file), ignored=_IGNORED, new=new)
    return model


def _without_indices(tensors, window):
    """The tensors without the buffers that say which row of a table belongs to which pair, once they were checked."""
    # Theirs count the offset of the query from the key, ours that of the key from the query.
    expected = (2 * window - 1) ** 2 - 1 - grid_offsets((window, window))
    for name, x in tensors.items():
        if name.endswith(_INDEX) and not np.array_equal(x, expected):
            raise UsageError(f"{name} does not number the offsets in a window of {window} x {window} as Swin does.")
    return {name: x for name, x in tensors.items() if not name.endswith(_INDEX)}


def _by_key(name, x):
    """A table of biases in our order, that of offsets from the query to the key; other tensors as they are."""
    return x[::-1] if name.endswith(_TABLE) else x


def _wanted(model, with_head):
    """`assign`'s `wanted`: name of each published tensor -> the variable that takes it and the order of its axes."""
    patches = "embeddings.patch_embeddings.projection"
    entries = {
        f"{patches}.weight": (model.patch_embedding.projection.kernel, KERNEL),
        f"{patches}.bias": (model.patch_embedding.projection.bias, None),
        **norm("embeddings.norm", model.embedding_norm),
        **norm("layernorm", model.final_norm),
    }
    blocks = iter(model.blocks)
    for stage, depth in enumerate(model.depths):
        for i in range(depth):
            block, prefix = next(blocks), f"encoder.layers.{stage}.blocks.{i}"
            entries |= {
                **norm(f"{prefix}.layernorm_before", block.attention_residual.normalization),
                **projections(f"{prefix}.attention.self", block.attention),
                f"{prefix}.attention.self.{_TABLE}": (block.relative_bias.table, None),
                **dense(f"{prefix}.attention.output.dense", block.attention.output_projection),
                **norm(f"{prefix}.layernorm_after", block.feed_forward_residual.normalization),
                **dense(f"{prefix}.intermediate.dense", block.feed_forward.inner),
                **dense(f"{prefix}.output.dense", block.feed_forward.outer),
            }
        if stage < len(model.mergings):
            merging, prefix = model.mergings[stage], f"encoder.layers.{stage}.downsample"
            entries |= {
                f"{prefix}.reduction.weight": (merging.reduction.kernel, MATRIX),
                **norm(f"{prefix}.norm", merging.normalization),
            }
    return {**entries, **dense("classifier", model.head)} if with_head else entries
