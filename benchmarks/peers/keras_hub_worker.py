"""A training step of KerasHub's TransformerEncoder and TransformerDecoder as a `harness.Worker`, run in .venv-peers."""

from benchmarks.keras_step import keras_step, limit_threads
from benchmarks.peers.serving import serve


def training_step(
    vocab_size,
    d_model,
    heads,
    layers,
    mlp_dim,
    batch,
    length,
    dropout,
    label_smoothing,
    learning_rate,
    jit_compile=False,
    policy="float32",
    threads=None,
):
    """A callable that does one step of Adam on one batch of random ids and returns the loss."""
    limit_threads(threads)
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)

    def embedded(ids):
        x = keras.layers.Embedding(vocab_size, d_model, mask_zero=True)(ids) * d_model**0.5
        return keras.layers.Dropout(dropout)(x + keras_hub.layers.SinePositionEncoding()(x))

    source, target = (keras.Input((length,), dtype="int32", name=name) for name in ("source", "target"))
    memory, x = embedded(source), embedded(target)
    for _ in range(layers):
        memory = keras_hub.layers.TransformerEncoder(mlp_dim, heads, dropout=dropout, normalize_first=True)(memory)
    memory = keras.layers.LayerNormalization()(memory)
    for _ in range(layers):
        x = keras_hub.layers.TransformerDecoder(mlp_dim, heads, dropout=dropout, normalize_first=True)(x, memory)
    x = keras.layers.LayerNormalization()(x)
    logits = keras.layers.Activation("linear", dtype="float32")(keras.layers.Dense(vocab_size)(x))
    model = keras.Model({"source": source, "target": target}, logits)

    def loss(labels, logits):
        if not label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        one_hot = keras.ops.one_hot(keras.ops.cast(labels, "int32"), vocab_size)
        return keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=label_smoothing)

    return keras_step(model, loss, vocab_size, batch, length, learning_rate, jit_compile)


if __name__ == "__main__":
    import os

    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_hub

    serve(f"KerasHub {keras_hub.__version__}", training_step)
