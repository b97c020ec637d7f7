"""DINOv2's weights from Hugging Face, or from an ONNX file exported from their model."""

from pathlib import Path

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.models import ViT
from keras_attention.pretrained import image_options
from keras_attention.pretrained.hugging_face import assign, built, check_arguments, read_config, read_tensors
from keras_attention.pretrained.vit import wanted

# What transformers takes for granted where a config.json does not say it.
_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "layer_norm_eps": 1e-6,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "mlp_ratio": 4,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "qkv_bias": True,
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
_IGNORED = ("embeddings.mask_token",)
_HEAD_DIM = 64  # in every published size


def load_dinov2(path, **kwargs):
    """A `ViT` with the weights of a DINOv2 model.

    Images are normalized with mean (0.485, 0.456, 0.406) and deviation (0.229, 0.224, 0.225) of values 0 to 1.

    Args:
        path: a folder with config.json and model.safetensors of a Hugging Face Dinov2Model or
            Dinov2ForImageClassification; or an ONNX file that was exported from a model around Dinov2Model as it stands
            (needs the package onnx): the names of its nodes tell which tensor is what. What stands in that file beside
            the backbone is left out.
        **kwargs: as for `load_vit`.

    Returns:
        A `ViT` with LayerScale and a class token, whose `hidden_states` and `features` are the published model's
        `hidden_states` and `last_hidden_state`. Without a head, `pooling="token"`; with one, that head takes the class
        token and the mean of the patches.

    Raises:
        UsageError: a file is missing or damaged, an option is not known here, or, with the full list, tensors that do
            not match.

    Reference: Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision", 2023,
    https://arxiv.org/abs/2304.07193
    """
    check_arguments(kwargs, ("pooling", *image_options.OPEN), path)
    if Path(path).suffix == ".onnx":
        tensors = _onnx_tensors(path)
        config = {**_DEFAULTS, **_sizes(tensors, path)}
    else:
        config = {**_DEFAULTS, **read_config(path, "dinov2")}
        image_options.required(config, path, *_SIZES)
        tensors = image_options.split_prefix(read_tensors(path), "dinov2.")
    for option, known in (("use_swiglu_ffn", False), ("qkv_bias", True)):
        if config[option] != known:
            raise UsageError(f"{path}: {option}={config[option]} is not known here.")
    tensors = image_options.without_leading_ones(tensors, "embeddings.cls_token", "embeddings.position_embeddings")
    num_classes, from_file, tensors = image_options.head(tensors, kwargs, path)
    options = {
        "dropout_rate": config["hidden_dropout_prob"],
        "attention_dropout_rate": config["attention_probs_dropout_prob"],
        "drop_path_rate": config["drop_path_rate"],
        **kwargs,
        "num_classes": num_classes,
        "pooling": image_options.pooling(kwargs, "token" if num_classes is None else "token_mean", from_file),
    }
    model = built(
        lambda: ViT(
            image_options.size(config["image_size"]),
            image_options.size(config["patch_size"]),
            d_model=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            mlp_dim=int(config["hidden_size"] * config["mlp_ratio"]),
            channels=config["num_channels"],
            layer_scale=config["layerscale_value"],
            activation=image_options.activation(config),
            epsilon=config["layer_norm_eps"],
            **options,
        ),
        path,
    )
    names = {"norms": ("norm1", "norm2"), "feed": ("mlp.fc1", "mlp.fc2")}
    new = [] if from_file or model.head is None else [model.head]
    assign(model, tensors, wanted(model, with_head=from_file, **names), ignored=_IGNORED, new=new)
    return model


# --- ONNX ---------------------------------------------------------------------------------------------------------


def _onnx_tensors(path):
    """The backbone's tensors of an ONNX file under Hugging Face's names.

    Exporting keeps the names of biases and norms. Kernels are folded and get a number, but the product that takes one
    is named after its layer; the position table is cut into that of the class token and that of the patches.
    """
    try:
        import onnx
    except ImportError as error:
        raise UsageError(
            f"Reading {path} needs a package that cannot be imported ({error}): pip install keras-attention[onnx]"
        ) from None
    try:
        graph = onnx.load(str(path)).graph
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Give an ONNX file or a folder with model.safetensors.") from None
    except Exception as error:
        # Whatever protobuf makes of a file that is none.
        raise UsageError(f"{path} is no ONNX file ({' '.join(str(error).split())[:200]}).") from None
    held = {tensor.name: tensor for tensor in graph.initializer}
    first = "embeddings.cls_token"
    prefix = next((name.removesuffix(first) for name in held if name.endswith(first)), None)
    if prefix is None:
        raise UsageError(f"{path} holds no {first}: it was not exported from a Dinov2Model.")
    tensors = {
        name.removeprefix(prefix): onnx.numpy_helper.to_array(tensor)
        for name, tensor in held.items()
        if name.startswith(prefix) and "::" not in name
    }
    # "backbone." stands in the names of nodes as "/backbone/".
    scope = "/" + prefix.replace(".", "/")
    positions = {}
    for node in graph.node:
        kernels = [name for name in node.input if name in held and "::" in name]
        if not kernels or not node.name.startswith(scope):
            continue
        array = onnx.numpy_helper.to_array(held[kernels[0]])
        place = node.name.removeprefix(scope).replace("/", ".")
        if node.op_type == "MatMul":
            tensors[place.removesuffix("MatMul") + "weight"] = array.T
        elif place.startswith("embeddings."):
            positions[node.op_type] = array
    if set(positions) != {"Concat", "Reshape"}:
        raise UsageError(f"{path} does not hold its table of positions as an export of Dinov2Model does.")
    tensors["embeddings.position_embeddings"] = np.concatenate([positions["Concat"], positions["Reshape"]], axis=1)
    return tensors


def _sizes(tensors, path):
    """What config.json would say, from the shapes of the tensors."""
    try:
        width, channels, patch, _ = tensors["embeddings.patch_embeddings.projection.weight"].shape
        side = round((tensors["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
        mlp_dim = tensors["encoder.layer.0.mlp.fc1.weight"].shape[0]
    except KeyError as error:
        raise UsageError(f"{path} holds no {error.args[0]}: it was not exported from a Dinov2Model.") from None
    layers = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
    return {
        "hidden_size": width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": width // _HEAD_DIM,
        "num_channels": channels,
        "image_size": side * patch,
        "patch_size": patch,
        "mlp_ratio": mlp_dim / width,
    }
