"""A small text model with any mechanism, run once: what claims of whole models are measured with."""


def text_case(
    mechanism,
    length,
    training,
    causal=False,
    layers=2,
    width=256,
    heads=4,
    mlp_dim=1024,
    vocab_size=8000,
    traced=False,
):
    """A callable that runs a text model once on one text, for `measure` and `peak_memory`.

    Args:
        training: loss and gradients to all weights; otherwise the logits alone.
        causal: a language model, with the logits of every next token; otherwise a classifier of two classes.
        traced: make the graph at once, so that the first call does not.
    """
    import keras
    import tensorflow as tf

    from keras_attention import mechanisms
    from keras_attention.layers import EncoderBlock

    ids = tf.random.stateless_uniform((1, length), (1, 0), 0, vocab_size, tf.int32)
    labels = tf.roll(ids, -1, axis=1) if causal else tf.zeros([1], tf.int32)
    chosen = mechanisms.from_text(mechanism)
    embedding = keras.layers.Embedding(vocab_size, width)
    blocks = [EncoderBlock(width, heads, mlp_dim, mechanism=chosen) for _ in range(layers)]
    norm, head = keras.layers.LayerNormalization(), keras.layers.Dense(vocab_size if causal else 2)
    embedding.build((1, length))
    for part in (*blocks, norm):
        part.build((1, length, width))
    head.build((1, length, width) if causal else (1, width))
    weights = [w for part in (embedding, *blocks, norm, head) for w in part.trainable_variables]

    def logits():
        x = embedding(ids)
        for block in blocks:
            x = block(x, use_causal_mask=causal, training=training)
        x = norm(x)
        return head(x if causal else tf.reduce_mean(x, axis=1))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits()))
        return [loss, *(tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, weights))]

    work = tf.function(step if training else logits, autograph=False)
    if traced:
        work.get_concrete_function()
    return lambda: work()
