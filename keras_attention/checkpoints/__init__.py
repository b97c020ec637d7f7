"""The old name of `keras_attention.pretrained`, kept so that programs go on working."""

from keras_attention.pretrained import load_clip, load_dinov2, load_swin, load_vit

__all__ = ["load_clip", "load_dinov2", "load_swin", "load_vit"]
