"""What blocks, the model and position layers accept, refuse and store."""

import keras
import numpy as np
import pytest

from keras_attention import PositionalEncoding
from keras_attention.layers import DecoderBlock, EncoderBlock
from keras_attention.mechanisms import base
from keras_attention.mechanisms.softmax import SoftmaxAttention
from keras_attention.models import Transformer


def test_a_block_does_not_track_the_mechanism_that_it_was_given():
    given = SoftmaxAttention(score_clip=3.0)
    block = DecoderBlock(8, 2, 16, mechanism=given, cross_mechanism=given)
    assert all(layer is not given for layer in block._flatten_layers())
    assert block.attention.mechanism.score_clip == block.cross_attention.mechanism.score_clip == 3.0
    again = DecoderBlock.from_config(block.get_config())
    assert again.attention.mechanism.score_clip == again.cross_attention.mechanism.score_clip == 3.0
    assert base.serialized("softmax") == "softmax" and base.serialized(None) is None


def test_a_block_says_which_width_it_needs():
    for block in (EncoderBlock(8, 2, 16), DecoderBlock(8, 2, 16)):
        with pytest.raises(ValueError, match=rf"{type(block).__name__}\(d_model=8\) got an input of width 6"):
            block.build((None, None, 6))


def test_zero_is_no_default_of_the_model():
    sizes = {"d_model": 8, "num_heads": 2, "mlp_dim": 12, "num_encoder_layers": 1, "num_decoder_layers": 1}
    for name in ("num_heads", "mlp_dim"):
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1. Got {name}=0"):
            Transformer(9, 9, **{**sizes, name: 0})


def test_symbolic_logits_are_float32_under_half_policies():
    model = Transformer(
        9, 7, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=12, dtype="mixed_bfloat16"
    )
    inputs = {"source": keras.Input((5,), dtype="int32"), "target": keras.Input((4,), dtype="int32")}
    logits = model(inputs)
    assert logits.dtype == "float32" and logits.shape == (None, 4, 7)


def test_interpolated_positions_take_no_positions():
    layer = PositionalEncoding(4, 8, beyond="interpolate")
    with pytest.raises(ValueError, match=r"which positions= does not tell: use beyond='clip' or 'error'"):
        layer(np.zeros((1, 2, 8), "float32"), positions=np.array([[0, 1]]))


def test_a_name_belongs_to_one_class_of_one_module():
    def made(module):
        return type("SoftmaxAttention", (base.Mechanism,), {"__module__": module, "__qualname__": "SoftmaxAttention"})

    with pytest.raises(ValueError, match=r"'softmax' is registered already: keras_attention\.mechanisms\.softmax\.So"):
        base.register("softmax")(made("elsewhere"))
    assert base.class_of("softmax") is SoftmaxAttention
