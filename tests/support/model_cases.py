"""One line per model: everything in test_every_model.py then runs on it."""

import keras
from contract_case import Case
from layer_cases import KEY_BIAS

from keras_attention import models
from keras_attention.mechanisms import LocalAttention, RetentionAttention

RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.2}
IMAGES = {
    "image_size": (6, 8),
    "num_classes": 3,
    "channels": 2,
    "mechanism": "softmax",
    **RATES,
    "drop_path_rate": 0.2,
    "activation": "tanh",
    "epsilon": 1e-3,
    "remat": True,
    "seed": 3,
}
FLAT = {"d_model": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 12, "layer_scale": 0.3}
TEXT = {
    "d_model": 8,
    "num_heads": 4,
    "num_layers": 1,
    "mlp_dim": 12,
    "mechanism": "softmax",
    **RATES,
    "activation": "tanh",
    "max_length": 9,
    "remat": True,
    "seed": 3,
}
DECODER = {"vocab_size": 11, "num_kv_heads": 2, "gated_mlp": True, "positions": "learned", "tie_output": False}
SCORES = {"remat": False, "num_layers": 2, "residual_attention_layers": 1}
ENCODER = {**TEXT, "vocab_size": 11, "eos_id": 5, "pad_id": 4, "epsilon": 1e-3}


def real(name):
    """The logits carry the mask of the tokens that they follow."""
    return lambda inputs, masks: inputs[name] != 0


def clip(dtype):
    """CLIP's arguments: its towers keep policies of their own."""
    towers = {
        "image_tower": models.ViT(4, 2, d_model=8, num_layers=1, num_heads=2, dtype=dtype),
        "text_tower": models.TextEncoder(11, d_model=8, num_layers=1, num_heads=2, max_length=9, dtype=dtype),
    }
    configs = {name: keras.saving.serialize_keras_object(tower) for name, tower in towers.items()}
    return {**configs, "projection_dim": 5, "logit_scale": 2.0, "max_logit_scale": 3.0}


MODELS = [
    Case(
        models.CLIP,
        clip,
        {"images": ("H", "W", 3), "text": ("T",)},
        as_dict=True,
        ids={"text": 11},
        pad_id=0,
        padded=("text",),
        output_dtype="float32",
        least=1,
        idle=KEY_BIAS,
    ),
    Case(
        models.DecoderLM,
        {**TEXT, **DECODER},
        {"ids": ("T",)},
        also=(SCORES, {"tie_output": True}),
        ids={"ids": 11},
        pad_id=0,
        padded=("ids",),
        carried=real("ids"),
        output_dtype="float32",
        idle=KEY_BIAS,
    ),
    Case(
        models.HybridViT,
        {**IMAGES, **FLAT, "patch_size": 2, "num_conv_layers": 2, "pooling": "token", "positions": "learned"},
        {"images": ("H", "W", 2)},
        output_dtype="float32",
        least=1,
        idle=KEY_BIAS,
    ),
    Case(
        models.RetNet,
        {
            **TEXT,
            **DECODER,
            "mechanism": RetentionAttention(chunk_size=3),
            "d_model": 16,
            "attention_dropout_rate": 0.0,
        },
        {"ids": ("T",)},
        also=({**SCORES, "mechanism": "softmax", "attention_dropout_rate": 0.2},),
        ids={"ids": 11},
        pad_id=0,
        padded=("ids",),
        carried=real("ids"),
        output_dtype="float32",
    ),
    Case(
        models.SwinTransformer,
        {
            **IMAGES,
            "patch_size": 2,
            "window_size": 3,
            "d_model": 8,
            "depths": (1, 1),
            "num_heads": (2, 4),
            "mlp_ratio": 2.0,
        },
        {"images": ("H", "W", 2)},
        output_dtype="float32",
        least=1,
        idle=KEY_BIAS,
    ),
    Case(
        models.TextEncoder,
        ENCODER,
        {"text": ("T",)},
        ids={"text": 11},
        pad_id=4,
        padded=("text",),
        least=1,
        idle=KEY_BIAS,
    ),
    Case(
        models.Transformer,
        {
            **{name: value for name, value in TEXT.items() if name != "num_layers"},
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "source_vocab_size": 11,
            "target_vocab_size": 11,
            "mechanism": LocalAttention(radius=2),
            "encoder_mechanism": "softmax",
            "decoder_mechanism": "softmax",
            "num_kv_heads": 2,
            "norm": "post",
            "residual": "gated",
            "positions": "learned",
            "share_embeddings": True,
            "tie_output": False,
        },
        {"source": ("S",), "target": ("T",)},
        also=({"remat": False, "num_encoder_layers": 2, "num_decoder_layers": 2, "residual_attention_layers": 1},),
        as_dict=True,
        ids={"source": 11, "target": 11},
        pad_id=0,
        padded=("source", "target"),
        carried=real("target"),
        output_dtype="float32",
        idle=KEY_BIAS,
    ),
    Case(
        models.ViT,
        {**IMAGES, **FLAT, "patch_size": 2, "pooling": "mean", "embedding_norm": True},
        {"images": ("H", "W", 2)},
        output_dtype="float32",
        least=1,
        idle=KEY_BIAS,
    ),
]
