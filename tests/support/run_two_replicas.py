"""Run by tests/training/test_losses.py: losses, or models, on two logical CPU devices and on one, printed as JSON."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_attention.models import CLIP, TextEncoder, Transformer
from keras_attention.training.optimization.adam import FusedAdam
from keras_attention.training.optimization.losses import MaskedCrossentropy, TokenLoss

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def one_step(out):
    """Four tokens of loss 1 on one replica, a single one of loss 3 on the other; the gradient is a temperature's."""
    labels = tf.constant([[1, 1, 1, 1], [1, 0, 0, 0]])
    p = np.exp([[-1.0] * 4, [-3.0] * 4])
    logits = tf.constant(np.log(np.stack([(1 - p) / 3, p, (1 - p) / 3, (1 - p) / 3], -1)), tf.float32)
    loss = MaskedCrossentropy()
    with STRATEGY.scope():
        metric = TokenLoss()
        temperature = tf.Variable(1.0)

    def step(labels, logits):
        with tf.GradientTape() as tape:
            value = loss(labels, logits * temperature)
        metric.update_state(labels, logits)
        return value, tape.gradient(value, temperature)

    def total(values):
        return sum(float(value) for value in STRATEGY.experimental_local_results(values))

    rows = tf.data.Dataset.from_tensor_slices((labels, logits)).batch(2)
    batch = next(iter(STRATEGY.experimental_distribute_dataset(rows)))
    value, gradient = tf.function(lambda *batch: STRATEGY.run(step, args=batch))(*batch)
    out["loss of two"], out["gradient of two"], out["metric of two"] = total(value), total(gradient), metric.result()
    one = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        whole = loss(labels, logits * one)
    out["loss of one"], out["gradient of one"] = whole, tape.gradient(whole, one)


def fit(out):
    """Batches of four rows whose second half, that is the second replica's share, has a fifth of the tokens."""
    rng = np.random.default_rng(5)
    ids = rng.integers(1, 6, (8, 5)).astype("int32")
    labels = rng.integers(1, 7, (8, 5)).astype("int32")
    labels[[2, 3, 6, 7], 1:] = 0

    def trained():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Embedding(6, 5), keras.layers.Dense(7)])
        model.compile(keras.optimizers.SGD(0.5), MaskedCrossentropy(0.1), metrics=[TokenLoss(0.1)])
        history = model.fit(ids, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return [x for w in model.trainable_variables for x in np.ravel(w)], history.history["loss"]

    out["weights of one"], out["history of one"] = trained()
    with STRATEGY.scope():
        out["weights of two"], out["history of two"] = trained()


def fit_translation(out):
    """A small Transformer with our Adam: on one device, on two without and with dropout, and on two under XLA."""
    rng = np.random.default_rng(7)
    batch = {name: rng.integers(1, 9, (8, length)).astype("int32") for name, length in (("source", 5), ("target", 4))}
    labels = rng.integers(1, 9, (8, 4)).astype("int32")
    labels[[2, 3, 6, 7], 1:] = 0

    def trained(rate, jit=False, optimizer=FusedAdam, **options):
        keras.utils.set_random_seed(4)
        sizes = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "mlp_dim": 12}
        model = Transformer(9, 9, dropout_rate=rate, attention_dropout_rate=rate, seed=1, **sizes, **options)
        model.build()
        model.compile(optimizer(0.05, epsilon=1e-3), MaskedCrossentropy(0.1), metrics=[TokenLoss(0.1)], jit_compile=jit)
        history = model.fit(batch, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return [[x for w in model.trainable_variables for x in np.ravel(w)], history.history["loss"]]

    # Tables whose gradients come by lookups alone: embeddings that are no output, positions, distances.
    tables = [{"positions": positions, "tie_output": False} for positions in ("learned", "relative")]
    tables = [{"optimizer": keras.optimizers.Adam, "max_length": 9, **options} for options in tables]
    out["translation of one"] = trained(0.0)
    out["tables of one"] = [trained(0.0, **options) for options in tables]
    with STRATEGY.scope():
        out["tables of two"] = [trained(0.0, **options) for options in tables]
        out["translation of two"] = trained(0.0)
        out["translation with dropout"] = trained(0.2)
        try:
            out["translation under XLA"] = trained(0.2, jit=True)[1]
        except tf.errors.InvalidArgumentError as error:
            out["translation under XLA"] = str(error)


def fit_pairs(out):
    """CLIP on batches of four pairs, in which a text stands on both replicas; its factor begins at its bound."""
    rng = np.random.default_rng(6)
    images = rng.normal(size=(8, 6, 6, 3)).astype("float32")
    text = rng.integers(4, 9, (8, 5)).astype("int32")
    text[:, 3:] = [3, 0]
    text[2] = text[1]

    def trained():
        keras.utils.set_random_seed(4)
        image_tower = keras.Sequential(
            [keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(5)]
        )
        # Checkpointed, which reads its variables on each replica by itself.
        text_tower = TextEncoder(9, d_model=8, num_heads=2, num_layers=1, max_length=5, remat=True)
        model = CLIP(image_tower, text_tower, projection_dim=4, logit_scale=3.0, max_logit_scale=3.0)
        model.build()
        model.compile(keras.optimizers.SGD(0.3))
        history = model.fit({"images": images, "text": text}, batch_size=4, epochs=2, shuffle=False, verbose=0)
        factor = float(np.exp(np.asarray(model.logit_scale)))
        return [x for w in model.trainable_variables for x in np.ravel(w)], history.history["loss"], factor

    out["pairs of one"] = trained()
    with STRATEGY.scope():
        out["pairs of two"] = trained()


if __name__ == "__main__":
    results = {}
    for part in {"losses": (one_step, fit), "models": (fit_translation, fit_pairs)}[sys.argv[1]]:
        part(results)
    print(json.dumps(results, default=float))
