"""ViT's weights from Hugging Face."""

from keras_attention.models import ViT
from keras_attention.pretrained import image_options
from keras_attention.pretrained.hugging_face import (
    KERNEL,
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
    "layer_norm_eps": 1e-12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "qkv_bias": True,
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Beside the encoder: the pooler that ViTModel has and ViTForImageClassification does not, and the token that stands for
# masked patches in pretraining.
_IGNORED = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token")


def load_vit(folder, **kwargs):
    """A `ViT` with the weights of a Hugging Face ViTModel or ViTForImageClassification.

    Images are to be normalized as the folder's preprocessor_config.json says.

    Args:
        folder: holds config.json and model.safetensors (or the files of an index).
        **kwargs: arguments of `ViT` that the weights do not decide: `num_classes` (None for features; another number
            than the file's, or any where it has no head, for a new head, which is said), `pooling` ("token" or, without
            the file's head, "token_mean"), `mechanism` (one that adds no weights), the rates of dropout, `remat`,
            `seed`, `name` and `dtype`.

    Returns:
        A `ViT` whose `hidden_states`, `features` and logits are the published model's `hidden_states`,
        `last_hidden_state` and `logits`; without a head, where the file has none and none is asked for. The pooler of
        ViTModel, which is no part of classification, is left out.

    Raises:
        UsageError: a file is missing or damaged, an argument is not one of these, an option is not known here, or, with
            the full list, tensors that do not match what config.json says.

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929
    """
    check_arguments(kwargs, ("pooling", *image_options.OPEN), folder)
    config = {**_DEFAULTS, **read_config(folder, "vit")}
    image_options.required(config, folder, *_SIZES)
    tensors = image_options.split_prefix(read_tensors(folder), "vit.")
    tensors = image_options.without_leading_ones(tensors, "embeddings.cls_token", "embeddings.position_embeddings")
    if not config["qkv_bias"]:
        for i in range(config["num_hidden_layers"]):
            heads = [f"encoder.layer.{i}.attention.attention.{part}" for part in ("query", "key", "value")]
            tensors = image_options.zeros_for(
                tensors, [f"{head}.bias" for head in heads], [f"{head}.weight" for head in heads]
            )
    num_classes, from_file, tensors = image_options.head(tensors, kwargs, folder)
    options = {
        "dropout_rate": config["hidden_dropout_prob"],
        "attention_dropout_rate": config["attention_probs_dropout_prob"],
        **kwargs,
        "num_classes": num_classes,
        "pooling": image_options.pooling(kwargs, "token", from_file),
    }
    model = built(
        lambda: ViT(
            image_options.size(config["image_size"]),
            image_options.size(config["patch_size"]),
            d_model=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            mlp_dim=config["intermediate_size"],
            channels=config["num_channels"],
            activation=image_options.activation(config),
            epsilon=config["layer_norm_eps"],
            **options,
        ),
        folder,
    )
    new = [] if from_file or model.head is None else [model.head]
    assign(model, tensors, wanted(model, with_head=from_file), ignored=_IGNORED, new=new)
    return model


def wanted(
    model, *, with_head, norms=("layernorm_before", "layernorm_after"), feed=("intermediate.dense", "output.dense")
):
    """`assign`'s `wanted`: name of each published tensor -> the variable that takes it and the order of its axes.

    Args:
        model: a built `ViT`.
        with_head: whether the head is in the file.
        norms, feed: names of the two norms and the two feed-forward layers of a block, which differ between published
            models. LayerScale has one name everywhere.
    """
    patches = "embeddings.patch_embeddings.projection"
    entries = {
        "embeddings.cls_token": (model.class_token, None),
        "embeddings.position_embeddings": (model.positions.position_emb, None),
        f"{patches}.weight": (model.patch_embedding.projection.kernel, KERNEL),
        f"{patches}.bias": (model.patch_embedding.projection.bias, None),
        **norm("layernorm", model.final_norm),
    }
    for i, block in enumerate(model.blocks):
        prefix, attention = f"encoder.layer.{i}", block.attention
        residuals = block.attention_residual, block.feed_forward_residual
        entries |= {
            **projections(f"{prefix}.attention.attention", attention),
            **dense(f"{prefix}.attention.output.dense", attention.output_projection),
            **dense(f"{prefix}.{feed[0]}", block.feed_forward.inner),
            **dense(f"{prefix}.{feed[1]}", block.feed_forward.outer),
        }
        for number, (name, residual) in enumerate(zip(norms, residuals, strict=True), start=1):
            entries |= norm(f"{prefix}.{name}", residual.normalization)
            if residual.scaling is not None:
                entries[f"{prefix}.layer_scale{number}.lambda1"] = (residual.scaling.scale, None)
    return {**entries, **dense("classifier", model.head)} if with_head else entries
