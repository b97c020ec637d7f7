"""Case 32: lengths that change from batch to batch, with and without XLA, and how often a step is traced."""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention
from keras_attention.layers import EncoderBlock, TokenEmbedding
from keras_attention.training.optimization.losses import MaskedCrossentropy
from keras_attention.training.translation.batches import BatchPlan

V = 11


@keras.saving.register_keras_serializable("test_shapes")
class Counted(keras.layers.Layer):
    """Counts how often a graph is traced through it, by length."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.lengths = []

    def call(self, x):
        self.lengths.append(x.shape[1])
        return x


def tagger(mechanism="auto"):
    counted = Counted()
    inputs = keras.Input((None,), dtype="int32")
    x = EncoderBlock(8, 2, 12, mechanism=mechanism, dropout_rate=0.1, attention_dropout_rate=0.1)(
        counted(TokenEmbedding(V, 8)(inputs)), use_causal_mask=True
    )
    model = keras.Model(inputs, keras.layers.Dense(V)(x))
    counted.lengths.clear()
    return model, counted


def batches(rng, lengths, rows=2):
    for length in lengths:
        ids = rng.integers(1, V, (rows, length)).astype("int32")
        yield ids, ids[:, ::-1].copy()


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_case_32_lengths_that_change(rng, jit):
    model, counted = tagger()
    model.compile("adam", MaskedCrossentropy(), jit_compile=jit)
    losses = [model.train_on_batch(*batch) for batch in batches(rng, (3, 5, 4))]
    assert np.isfinite(losses).all()
    assert set(counted.lengths) <= {3, None} and len(counted.lengths) <= 3


def test_case_32_twenty_lengths_are_two_traces(rng):
    for mechanism in ("auto", "blockwise"):
        model, counted = tagger(mechanism)
        model.compile("adam", MaskedCrossentropy(), jit_compile=False)
        lengths = rng.permutation(np.arange(3, 23))
        for batch in batches(rng, lengths if mechanism == "auto" else lengths[:4]):
            model.train_on_batch(*batch)
        # The first length (twice, as the optimizer's variables are made in it), then any length.
        assert set(counted.lengths) <= {lengths[0], None} and len(counted.lengths) <= 3, mechanism
        model.predict(rng.integers(1, V, (2, 7)), verbose=0)


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_case_32_several_steps_in_one_execution_use_all_rows(steps):
    """7 batches of 2 rows with targets 0 ... 13 and predictions 0: the mean square is 58.5."""
    model = keras.Sequential([keras.Input((3, 4)), MultiHeadAttention(1, 1, head_dim=2)])
    model.layers[0].output_projection.kernel.assign(np.zeros((2, 1)))
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=steps)
    x, y = np.ones((14, 3, 4), "float32"), np.arange(14.0).reshape(14, 1, 1) * np.ones((1, 3, 1))
    assert model.evaluate(x, y, batch_size=2, verbose=0) == pytest.approx(58.5)


def test_case_32_compiled_training_sees_the_shapes_of_its_plan_alone(rng):
    """Text becomes ids outside the compiled step: what reaches it is integers of a few fixed shapes."""
    sentences = [rng.integers(4, V, n).tolist() for n in rng.integers(1, 20, 60)]
    plan = BatchPlan(sentences, sentences, tokens_per_batch=96, max_length=24, static_shapes=True)
    assert len(plan.shapes) <= 3
    model, counted = tagger()
    model.compile("adam", MaskedCrossentropy(), jit_compile=True)
    dataset = plan.dataset().map(lambda inputs, labels: (inputs["target"], labels))
    seen = {tuple(labels.shape) for _, labels in dataset}
    assert seen == set(plan.shapes) and len(plan) > len(seen)
    assert np.isfinite(model.fit(dataset, verbose=0).history["loss"]).all()
    assert len(set(counted.lengths)) <= 2
