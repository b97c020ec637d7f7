"""One training step of any Keras translation model: what ours and KerasHub's are both measured by."""


def limit_threads(threads):
    """At most so many threads inside and across operations; before TensorFlow has begun to compute."""
    if threads:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def keras_step(model, loss, vocab_size, batch, length, learning_rate, jit_compile, adam=None):
    """A callable that does one step of Adam on one batch of random ids and returns the loss.

    Args:
        model: called with {"source": [B, T], "target": [B, T]}, gives logits [B, T, V].
        loss: Keras loss.
        vocab_size, batch, length: of the random ids, none of which is padding.
        learning_rate: of Adam.
        jit_compile: whether the step is compiled by XLA.
        adam: class of the optimizer, `keras.optimizers.Adam` by default.
    """
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    source, target, labels = rng.integers(1, vocab_size, (3, batch, length)).astype("int32")
    optimizer = (adam or keras.optimizers.Adam)(learning_rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    return lambda: float(model.train_on_batch({"source": source, "target": target}, labels))
