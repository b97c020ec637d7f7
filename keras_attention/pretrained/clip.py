"""CLIP's weights from Hugging Face and OpenAI."""

from keras_attention.errors import UsageError
from keras_attention.models import CLIP, TextEncoder, ViT
from keras_attention.ops.basics.activations import quick_gelu
from keras_attention.pretrained.hugging_face import (
    KERNEL,
    MATRIX,
    assign,
    built,
    check_arguments,
    dense,
    norm,
    read_config,
    read_tensors,
)

# What transformers takes for granted where a config.json does not say it.
_TEXT = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
# Their "gelu" is the exact one, as is Keras'; OpenAI's weights need their own.
_ACTIVATIONS = {"quick_gelu": quick_gelu, "gelu": "gelu", "relu": "relu"}
# Buffers that old files hold beside the weights.
_BUFFERS = ("position_ids",)


def load_clip(folder, **kwargs):
    """A `CLIP` with the weights of a Hugging Face CLIPModel, such as OpenAI's.

    Images are to be normalized as the folder's preprocessor_config.json says; token ids come from its own tokenizer:
    begin of text, subwords, end of text, padded on the right with anything.

    Args:
        folder: holds config.json and model.safetensors (or the files of an index).
        **kwargs: `name` and `dtype` of the model.

    Returns:
        `CLIP` of a `ViT` and a `TextEncoder`, whose vectors are the published model's `image_embeds` and `text_embeds`.

    Raises:
        UsageError: a file is missing or damaged, an option is not known here, or, with the full list, tensors that do
            not match what config.json says.

    Example:
        >>> model = load_clip("clip-vit-base-patch32")
        >>> model.encode_text(np.array([[49406, 320, 2368, 49407]])).shape
        TensorShape([1, 512])

    Reference: Radford et al., 2021, https://arxiv.org/abs/2103.00020
    """
    check_arguments(kwargs, ("name", "dtype"), folder)
    config = read_config(folder, "clip")
    text = {**_TEXT, **(config.get("text_config") or {})}
    vision = {**_VISION, **(config.get("vision_config") or {})}
    model = built(
        lambda: CLIP(
            _image_tower(vision, kwargs.get("dtype")),
            _text_tower(text, kwargs.get("dtype")),
            projection_dim=config.get("projection_dim", 512),
            **kwargs,
        ),
        folder,
    )
    # Published patches are projected without a bias; here it is zero.
    patches = model.image_tower.patch_embedding.projection
    assign(model, read_tensors(folder), _wanted(model), ignored=_BUFFERS, new=[patches])
    return model


def _image_tower(config, dtype):
    return ViT(
        config["image_size"],
        config["patch_size"],
        channels=config["num_channels"],
        d_model=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        mlp_dim=config["intermediate_size"],
        pooling="token",
        embedding_norm=True,
        activation=_activation(config["hidden_act"]),
        epsilon=config["layer_norm_eps"],
        dtype=dtype,
        name="image_tower",
    )


def _text_tower(config, dtype):
    eos_id = config["eos_token_id"]
    return TextEncoder(
        config["vocab_size"],
        d_model=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        mlp_dim=config["intermediate_size"],
        max_length=config["max_position_embeddings"],
        # Configs made before the id was known say 2, and mean the largest id of a text.
        eos_id=None if eos_id == 2 else eos_id,
        pad_id=None,
        activation=_activation(config["hidden_act"]),
        epsilon=config["layer_norm_eps"],
        dtype=dtype,
        name="text_tower",
    )


def _activation(name):
    if name not in _ACTIVATIONS:
        raise UsageError(f"hidden_act must be one of {', '.join(_ACTIVATIONS)}. Got {name!r}.")
    return _ACTIVATIONS[name]


def _wanted(model):
    """`assign`'s `wanted`: name of each published tensor -> the variable that takes it and the order of its axes."""
    image, text = model.image_tower, model.text_tower
    vision_embeddings = "vision_model.embeddings"
    return {
        "logit_scale": (model.logit_scale, None),
        "visual_projection.weight": (model.image_projection.kernel, MATRIX),
        "text_projection.weight": (model.text_projection.kernel, MATRIX),
        f"{vision_embeddings}.class_embedding": (image.class_token, None),
        f"{vision_embeddings}.patch_embedding.weight": (image.patch_embedding.projection.kernel, KERNEL),
        f"{vision_embeddings}.position_embedding.weight": (image.positions.position_emb, None),
        **norm("vision_model.pre_layrnorm", image.embedding_norm),  # their spelling
        **_blocks("vision_model", image.blocks),
        **norm("vision_model.post_layernorm", image.final_norm),
        "text_model.embeddings.token_embedding.weight": (text.embedding.embeddings, None),
        "text_model.embeddings.position_embedding.weight": (text.positions.position_emb, None),
        **_blocks("text_model", text.blocks),
        **norm("text_model.final_layer_norm", text.norm),
    }


def _blocks(tower, blocks):
    entries = {}
    for i, block in enumerate(blocks):
        prefix = f"{tower}.encoder.layers.{i}"
        attention, feed_forward = block.attention, block.feed_forward
        entries |= {
            **norm(f"{prefix}.layer_norm1", block.attention_residual.normalization),
            **dense(f"{prefix}.self_attn.q_proj", attention.query_projection),
            **dense(f"{prefix}.self_attn.k_proj", attention.key_projection),
            **dense(f"{prefix}.self_attn.v_proj", attention.value_projection),
            **dense(f"{prefix}.self_attn.out_proj", attention.output_projection),
            **norm(f"{prefix}.layer_norm2", block.feed_forward_residual.normalization),
            **dense(f"{prefix}.mlp.fc1", feed_forward.inner),
            **dense(f"{prefix}.mlp.fc2", feed_forward.outer),
        }
    return entries
