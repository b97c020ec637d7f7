"""Public report case 43: names and dtypes of an exported model are those that its author gave; clients go by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export import export_onnx
from keras_attention.layers import EncoderBlock, MultiHeadAttention, TokenEmbedding

pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")


class Tagger(keras.Model):
    """A subclassed model from a dict to a dict."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(11, 8)
        self.block = EncoderBlock(8, 2, 12)

    def call(self, inputs):
        x = self.block(self.embedding(inputs["ids"]), padding_mask=tf.not_equal(inputs["attention_mask"], 0))
        return {"pooled": tf.reduce_mean(x, axis=1), "hidden": x}


def ids_input():
    return keras.Input((None,), dtype="int64", name="ids")


def functional():
    ids = ids_input()
    x = EncoderBlock(8, 2, 12)(TokenEmbedding(11, 8)(ids))
    outputs = [keras.layers.Dense(3, name="tags")(x), MultiHeadAttention(8, 2, name="again")(x, use_causal_mask=True)]
    return keras.Model(ids, outputs), {}, ["ids"], ["tags", "again"]


def subclass():
    signature = {
        "ids": tf.TensorSpec([None, None], tf.int64),
        "attention_mask": tf.TensorSpec([None, None], tf.int64),
    }
    model = Tagger()
    model({name: tf.ones([1, 2], tf.int64) for name in signature})
    return model, {"input_signature": signature}, ["ids", "attention_mask"], ["pooled", "hidden"]


@pytest.mark.parametrize("make", [functional, subclass])
def test_case_43_names_and_dtypes_are_kept(rng, tmp_path, make):
    """tensorflow-onnx#2319, keras#21637."""
    model, options, input_names, output_names = make()
    export_onnx(model, tmp_path / "onnx", **options)
    session = onnxruntime.InferenceSession(tmp_path / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    assert sorted(x.name for x in session.get_inputs()) == sorted(input_names)
    assert sorted(x.name for x in session.get_outputs()) == sorted(output_names)
    types = {x.name: x.type for x in session.get_inputs()}
    assert types["ids"] == "tensor(int64)" and all(x.type == "tensor(float)" for x in session.get_outputs())
    for batch, length in ((1, 1), (2, 7), (3, 40)):
        feeds = {name: rng.integers(1, 11, (batch, length)) for name in input_names}
        if "attention_mask" in feeds:
            feeds["attention_mask"] = (feeds["attention_mask"] < 8).astype("int64")
            feeds["attention_mask"][:, 0] = 1
        want = model(feeds if len(feeds) > 1 else feeds["ids"])
        want = want if isinstance(want, dict) else dict(zip(output_names, tf.nest.flatten(want)))
        for name, value in zip(output_names, session.run(output_names, feeds)):
            np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-5)
