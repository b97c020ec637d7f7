"""The store of fixed size against a loop, and what a long prompt costs it."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.ops.dense import kv_cache

B, H, D, VALUE_DIM, CAPACITY = 5, 3, 4, 2, 11


def by_loop(store, k, v, valid):
    """What `append` does, slot by slot: (store, the index up to which each token may look, rows that did not fit)."""
    store = {name: np.array(x) for name, x in store.items()}
    positions, overflow = np.zeros(valid.shape, "int32"), np.zeros(len(valid), bool)
    for b, row in enumerate(valid):
        overflow[b] = store["lengths"][b] + row.sum() > CAPACITY
        filled = store["lengths"][b]
        for t, real in enumerate(row):
            if real and not overflow[b]:
                store["key"][b, :, filled], store["value"][b, :, filled] = k[b, :, t], v[b, :, t]
            filled += real
            positions[b, t] = min(max(filled - 1, 0), CAPACITY - 1)
        if not overflow[b]:
            store["lengths"][b] = filled
    return store, positions, overflow


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("plan", [(3, 1, 5, 2), (1, 1, 7, 4), (12, 3)], ids=str)
def test_any_padding_in_any_chunk_equals_a_loop(rng, plan, jit_compile):
    append = tf.function(kv_cache.append, jit_compile=jit_compile, reduce_retracing=not jit_compile)
    store = kv_cache.fixed(B, H, D, tf.float32, CAPACITY, VALUE_DIM)
    seen_overflow = False
    for length in plan:
        k = rng.normal(size=(B, H, length, D)).astype("float32")
        v = rng.normal(size=(B, H, length, VALUE_DIM)).astype("float32")
        # All real, none real, and three that are padded anywhere.
        valid = rng.random((B, length)) < np.array([1.1, -0.1, 0.5, 0.5, 0.8])[:, None]
        want, want_positions, want_overflow = by_loop(store, k, v, valid)
        store, padding, positions, overflow = append(store, k, v, valid)
        for name in store:
            np.testing.assert_array_equal(store[name], want[name], err_msg=name)
        np.testing.assert_array_equal(padding, np.arange(CAPACITY) < want["lengths"][:, None])
        np.testing.assert_array_equal(positions, want_positions)
        np.testing.assert_array_equal(overflow, want_overflow)
        seen_overflow |= want_overflow.any()
    assert seen_overflow == (sum(plan) > CAPACITY)


def test_a_long_prompt_needs_no_table_of_slots_and_tokens():
    capacity, length = 601, 503
    store = kv_cache.fixed(1, 1, 2, tf.float32, capacity)
    new = tf.TensorSpec([1, 1, length, 2])
    traced = tf.function(kv_cache.append).get_concrete_function(store, new, new, tf.TensorSpec([1, length], tf.bool))
    largest = max(tensor.shape.num_elements() or 0 for op in traced.graph.get_operations() for tensor in op.outputs)
    assert largest <= 2 * capacity
