"""Models built on the layers, each readable alone."""

from keras_attention.models.clip import CLIP
from keras_attention.models.decoder_lm import DecoderLM
from keras_attention.models.hybrid_vit import HybridViT
from keras_attention.models.retnet import RetNet
from keras_attention.models.swin import SwinTransformer
from keras_attention.models.text_encoder import TextEncoder
from keras_attention.models.transformer import Transformer
from keras_attention.models.vit import ViT

__all__ = [
    "CLIP",
    "DecoderLM",
    "HybridViT",
    "RetNet",
    "SwinTransformer",
    "TextEncoder",
    "Transformer",
    "ViT",
]
