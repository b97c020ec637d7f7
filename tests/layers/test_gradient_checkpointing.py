"""Gradient checkpointing: the same numbers as without it, in every way to run, and nothing kept in between."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import mechanisms
from keras_attention.layers import DecoderBlock, EncoderBlock, WindowBlock
from keras_attention.layers.gradient_checkpointing import checkpointed
from keras_attention.models import DecoderLM, HybridViT, SwinTransformer, TextEncoder, Transformer, ViT

B, T, S, E = 2, 5, 7, 8
WAYS = {"eager": lambda f: f, "graph": tf.function, "compiled": lambda f: tf.function(f, jit_compile=True)}


def inputs(rng):
    x, memory = (tf.constant(rng.normal(size=(B, n, E)), tf.float32) for n in (T, S))
    return x, memory, tf.constant([[True] * T, [True] * 3 + [False] * 2]), tf.constant([[False] + [True] * 6] * B)


def encoder(x, memory, valid, memory_valid, bias):
    free = tf.linalg.band_part(tf.ones([1, 1, T, T], tf.bool), 2, 1)

    def call(block):
        return block(x, padding_mask=valid, attention_mask=free, bias=bias, use_causal_mask=True, training=True)

    return EncoderBlock, call


def decoder(x, memory, valid, memory_valid, bias):
    def call(block):
        return block(x, memory=memory, padding_mask=valid, memory_mask=memory_valid, training=True)

    return DecoderBlock, call


def implicit(x, memory, valid, memory_valid, bias):
    def call(block):
        # Fresh tensors: a mask must not stay on those of the other calls.
        masked, masked_memory = tf.identity(x), tf.identity(memory)
        masked._keras_mask, masked_memory._keras_mask = valid, memory_valid
        out = block(masked, masked_memory, training=True)
        assert out._keras_mask is valid
        return out

    return DecoderBlock, call


def gradients_of(kind, given, policy, remat, values, run, **options):
    """Output, gradients to inputs and weights, and the variables after the call, of one block."""
    bias = tf.Variable(np.linspace(-1, 1, 2 * T * T, dtype="float32").reshape(1, 2, T, T))
    block_class, call = kind(*given, bias)
    options = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "seed": 3, **options}
    block = block_class(E, 2, 12, dtype=policy, remat=remat, **options)
    block.build((None, None, E))
    values = values or block.get_weights()
    block.set_weights(values)

    def step():
        with tf.GradientTape() as tape:
            tape.watch([given[0], given[1]])
            out = call(block)
            # Scaled as a loss in half precision is.
            loss = tf.reduce_sum(tf.cast(out, tf.float32) ** 2) * 64
        wanted = [given[0], given[1], bias, *block.trainable_variables]
        return [out, *(g for g in tape.gradient(loss, wanted) if g is not None)]

    return values, [np.asarray(tf.cast(x, tf.float32)) for x in run(step)()], [np.asarray(v) for v in block.variables]


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [encoder, decoder, implicit], ids=lambda kind: kind.__name__)
def test_gradients_are_those_without_it(rng, kind, way, policy):
    if way == "compiled" and (kind is not decoder or policy == "mixed_bfloat16"):
        pytest.skip("compiled once in float32 and once in half precision")
    given = inputs(rng)
    values, want, want_variables = gradients_of(kind, given, policy, False, None, WAYS[way])
    _, got, variables = gradients_of(kind, given, policy, True, values, WAYS[way])
    assert len(got) == len(want) > 17
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    # The seeds of the dropout among them: advanced, and as often as without it.
    for a, b in zip(variables, want_variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name, options", [("linear", {}), ("blockwise", {}), ("linformer", {"max_length": T})])
def test_mechanisms_with_weights_and_gradients_of_their_own(rng, name, options):
    given = inputs(rng)

    def plain(x, memory, valid, memory_valid, bias):
        return EncoderBlock, lambda block: block(x, padding_mask=valid, training=True)

    def gradients(remat, values):
        mechanism = mechanisms.class_of(name)(**options)
        options_of_block = {"mechanism": mechanism, "attention_dropout_rate": 0.2 * (name == "blockwise")}
        return gradients_of(plain, given, "mixed_bfloat16", remat, values, tf.function, **options_of_block)

    values, want, _ = gradients(False, None)
    for a, b in zip(gradients(True, values)[1], want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_dropout_draws_anew_in_every_step(rng):
    x, *_ = inputs(rng)
    block = EncoderBlock(E, 2, 12, dropout_rate=0.5, seed=1, remat=True)
    first, second = (block(x, training=True).numpy() for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal(block(x), block(x))  # no dropout, no checkpointing: the plain call


@pytest.mark.parametrize("remat", [False, True])
def test_nothing_in_between_is_kept_for_the_gradient(rng, remat):
    x, *_ = inputs(rng)
    block = EncoderBlock(E, 2, 12, remat=remat)
    block.build((None, None, E))
    inner = []
    feed = block.feed_forward.call

    def watched(x, training=False):
        inner.append(weakref.ref(x))
        return feed(x, training=training)

    block.feed_forward.call = watched
    with tf.GradientTape() as tape:
        y = block(x, training=True)
    gc.collect()
    assert (inner[0]() is None) == remat
    tape.gradient(y, block.trainable_variables)
    assert len(inner) == 1 + remat


def products(way, remat, x):
    """How many matrix products are left in a training step once the graph has been optimised."""
    block = EncoderBlock(E, 2, 12, mechanism="softmax", remat=remat)
    block.build((None, None, E))

    @tf.function(jit_compile=way == "compiled")
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(block(x, training=True), training=True) ** 2)
        return tape.gradient(loss, block.trainable_variables)

    if way == "compiled":
        text = step.experimental_get_compiler_ir(x)(stage="optimized_hlo")
        # A product is a `dot`, or a call of a library for one.
        return sum(" dot(" in line or "matmul" in line.split("metadata")[0] for line in text.splitlines())
    return sum("MatMul" in node.op for node in _optimized(step.get_concrete_function(x)).node)


def _optimized(concrete):
    """The graph of a function as TensorFlow's own optimizer leaves it, in which equal operations are merged."""
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.python.grappler import tf_optimizer
    from tensorflow.python.training.saver import export_meta_graph

    meta_graph = export_meta_graph(graph_def=concrete.graph.as_graph_def(), graph=concrete.graph)
    fetches = meta_graph_pb2.CollectionDef()
    fetches.node_list.value.extend(x.name for x in concrete.outputs)
    meta_graph.collection_def["train_op"].CopyFrom(fetches)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    return tf_optimizer.OptimizeGraph(config, meta_graph)


@pytest.mark.parametrize("way", ["graph", "compiled"])
def test_no_compiler_merges_the_second_pass_with_the_first(rng, way):
    x, *_ = inputs(rng)
    plain, twice = (products(way, remat, x) for remat in (False, True))
    # Two blocks with a projection of q, k and v, scores, values, an output projection and two dense layers: 6 products
    # in a pass, of which the last is not needed a second time.
    assert twice - plain >= 2 * 5, (plain, twice)


def test_a_second_derivative_is_right(rng):
    x, *_ = inputs(rng)

    def penalty(remat):
        keras.utils.set_random_seed(5)
        block = EncoderBlock(E, 2, 12, activation="gelu", mechanism="softmax", remat=remat)
        block.build((None, None, E))
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(block(x, training=True) ** 2)
            slope = tf.reduce_sum(inner.gradient(loss, x) ** 2)
        return outer.gradient(slope, block.feed_forward.inner.kernel.value)

    np.testing.assert_allclose(penalty(True), penalty(False), rtol=1e-4)


def test_frozen_parts_and_what_is_not_floating(rng):
    x, *_ = inputs(rng)
    block = EncoderBlock(E, 2, 12, remat=True)
    block.build((None, None, E))
    block.attention.trainable = False
    with tf.GradientTape() as tape:
        y = block(x, training=True)
    frozen, trained = (part.trainable_variables for part in (block.attention, block.feed_forward))
    assert frozen == [] and all(g is not None for g in tape.gradient(y, trained))

    with tf.GradientTape() as tape:
        y = tf.gather(block(x, training=True), [1, 1])  # its gradient comes as slices
    assert all(g is not None for g in tape.gradient(y, trained))

    ids = tf.constant([2, 0])
    dense = keras.layers.Dense(1)
    dense.build((None, E))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = checkpointed(
            dense, lambda pair, one: dense(tf.gather(pair["x"], pair["ids"], axis=1)) + one, {"x": x, "ids": ids}, 1
        )
    gradient = tape.gradient(y, x)
    assert np.flatnonzero(np.abs(gradient).sum(axis=(0, 2))).tolist() == [0, 2]


def test_blocks_of_windows(rng):
    x = tf.constant(rng.normal(size=(2, 3, 5, E)), tf.float32)

    def gradients(remat, values=None):
        block = WindowBlock(E, 2, 12, window=2, shift=1, dropout_rate=0.3, seed=1, remat=remat)
        block.build((None, None, None, E))
        block.set_weights(values or block.get_weights())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(x, training=True) ** 2)
        return block.get_weights(), tape.gradient(loss, block.trainable_variables)

    values, want = gradients(False)
    for a, b in zip(gradients(True, values)[1], want, strict=True):
        np.testing.assert_allclose(a, tf.convert_to_tensor(b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision, options", [("float32", {"run_eagerly": True}), ("mixed_float16", {})])
def test_fit_trains_the_same_model(rng, precision, options):
    keras.config.set_dtype_policy(precision)
    source, target = (rng.integers(1, 20, size=(8, n)).astype("int32") for n in (S, T))
    source[3, 4:] = 0
    labels = rng.integers(1, 20, size=(8, T)).astype("int32")

    def trained(remat):
        keras.utils.set_random_seed(4)
        model = Transformer(
            20, 20, d_model=E, num_heads=2, num_encoder_layers=2, num_decoder_layers=2, mlp_dim=12, remat=remat, seed=2
        )
        model.build()
        assert model.encoder_blocks[1].remat == model.decoder_blocks[0].remat == remat
        # Not Adam, which makes steps out of the noise of gradients that are zero, as those of the keys' biases are.
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **{"jit_compile": False, **options})
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (precision == "mixed_float16")
        model.fit({"source": source, "target": target}, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return [np.asarray(v) for v in model.variables]

    # In half precision graphs round where operations are fused, which is elsewhere in a second pass. Another dropout
    # mask makes differences a hundred times as large.
    tolerance = 1e-6 if precision == "float32" else 1e-3
    for a, b in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=tolerance)


def test_the_option_is_kept():
    for block in (EncoderBlock(E, 2, 12, remat=True), DecoderBlock(E, 2, 12, remat=True)):
        assert type(block).from_config(block.get_config()).remat
    sizes = {"d_model": E, "num_heads": 2, "num_layers": 2, "remat": True}
    models = [ViT(8, 4, 3, **sizes), HybridViT(8, 4, 3, **sizes), TextEncoder(9, **sizes), DecoderLM(9, **sizes)]
    models += [SwinTransformer(8, 2, 3, window_size=2, d_model=E, depths=(1, 1), num_heads=(2, 2), remat=True)]
    for model in models:
        assert all(block.remat for block in type(model).from_config(model.get_config()).blocks)
    old = EncoderBlock(E, 2, 12).get_config()
    del old["remat"]  # as files of earlier releases have it
    assert not EncoderBlock.from_config(old).remat
