"""Models built on the layers, each readable alone."""

from keras_attention.models.clip import CLIP
from keras_attention.models.text.decoder_lm import DecoderLM
from keras_attention.models.text.retnet import RetNet
from keras_attention.models.text.text_encoder import TextEncoder
from keras_attention.models.text.transformer import Transformer
from keras_attention.models.vision.hybrid_vit import HybridViT
from keras_attention.models.vision.swin import SwinTransformer
from keras_attention.models.vision.vit import ViT

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
