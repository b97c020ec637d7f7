"""What every mechanism must do, run on each line of cases.py: what it declares is honoured, the rest is refused."""

import itertools
import json
import subprocess
import sys

import cases
import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from mechanism_layers import (
    BY_NAME,
    D_MODEL,
    WIDTH,
    WIDTHS,
    B,
    D,
    H,
    K,
    S,
    T,
    causal_options,
    close,
    cross_layer,
    every_mechanism,
    expected,
    graph_of,
    keep_some,
    new_layer,
    options_for,
    randomize,
    self_layer,
    sequence,
    subsets,
    supports,
)

from keras_attention import mechanisms
from keras_attention.layers import MultiHeadAttention


@pytest.fixture(autouse=True)
def skipped(request):
    """Skips what a case declares impossible, with its reason."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    reason = case and case.skips.get(request.node.originalname.removeprefix("test_"))
    if reason:
        pytest.skip(reason)


# --- equality with the loops ---------------------------------------------------------------------------------------


def test_all_registered_mechanisms_have_a_case():
    assert [case.name for case in cases.CASES] == list(BY_NAME)
    assert set(BY_NAME) == set(mechanisms.names())


@every_mechanism
@pytest.mark.parametrize("kv_heads", [H, K])
def test_self_attention_equals_the_loop(rng, case, kv_heads, subtests):
    for given in subsets(case):
        with subtests.test(given="+".join(given) or "nothing"):
            layer = self_layer(case.name, num_kv_heads=kv_heads, temperature=1.7 if "temperature" in given else 1.0)
            x = sequence(rng, case)
            limits, bias, arguments = options_for(rng, given, case.length, case.length, layer.num_heads)
            got = layer(x, **arguments)
            close(got, expected(layer, case, x, limits=limits, bias=bias), case.tolerance)


@every_mechanism
@pytest.mark.parametrize("queries, keys", [(T, S), (S, T)])
def test_cross_attention_equals_the_loop(rng, case, queries, keys, subtests):
    if not supports(case).cross:
        pytest.skip("self-attention only, as declared")
    for given, kv_heads in itertools.product(subsets(case), (H, K)):
        with subtests.test(given="+".join(given) or "nothing", kv_heads=kv_heads):
            layer = cross_layer(case.name, num_kv_heads=kv_heads, temperature=1.7 if "temperature" in given else 1.0)
            v, k = (sequence(rng, case, length=keys, width=WIDTHS[part]) for part in ("v", "k"))
            q = sequence(rng, case, length=queries, width=WIDTHS["q"])
            limits, bias, arguments = options_for(rng, given, queries, keys, layer.num_heads)
            got = layer(v=v, k=k, q=q, **arguments)
            close(got, expected(layer, case, v, k, q, limits=limits, bias=bias), case.tolerance)


@every_mechanism
def test_differs_from_softmax_unless_exact(rng, case):
    layer = self_layer(case.name)
    x = sequence(rng, case)
    limits = reference.Limits(causal=supports(case).causal)
    got = layer(x, **causal_options(case)).numpy()
    q, k, v, _ = case.heads(layer, x, x, x)
    dense = reference.project(reference.join(reference.softmax(q, k, v, limits=limits)), layer.output_projection)
    difference = np.abs(got - dense).max()
    if case.exact:
        assert difference < case.tolerance
    else:
        assert difference > 1e-3


@every_mechanism
def test_scores_are_the_weights_that_were_used(rng, case):
    if not supports(case).scores:
        pytest.skip("gives no scores, as declared")
    layer = self_layer(case.name, num_kv_heads=K)
    x = sequence(rng, case)
    given = [name for name in ("padding", "free", "causal") if name in itertools.chain(*subsets(case))]
    limits, _, arguments = options_for(rng, given, case.length, case.length, layer.num_heads)
    got, scores = layer(x, return_attention_scores=True, **arguments)
    close(got, layer(x, **arguments), 1e-6)
    assert scores.shape == (B, layer.num_heads, case.length, case.length)
    assert not scores.numpy()[~limits.keep(*scores.shape)].any()
    values = case.heads(layer, x, x, x)[2]
    close(got, reference.project(reference.join(scores.numpy() @ values), layer.output_projection))


@every_mechanism
def test_dropout_drops_in_training_only(rng, case):
    if not supports(case).dropout:
        with pytest.raises(ValueError, match=rf"mechanism='{case.name}' does not support dropout.*; use "):
            new_layer(case, dropout_rate=0.5)
        return
    layer = self_layer(case.name, dropout_rate=0.5)
    x = sequence(rng, case)
    quiet = self_layer(case.name)(x)
    np.testing.assert_array_equal(layer(x), quiet)
    first, second = layer(x, training=True), layer(x, training=True)
    assert np.abs(first - quiet).max() > 1e-3 and np.abs(first - second).max() > 1e-3
    assert np.isfinite(first).all()


# --- nothing to read -----------------------------------------------------------------------------------------------


@every_mechanism
def test_no_tokens_at_all(rng, case, subtests):
    """Case 94: a batch of sequences of length 0 gives [B, 0, E], and an empty batch [0, T, E], on every path."""
    s, options = supports(case), causal_options(case)
    x = tf.constant(sequence(rng, case))
    none = x[:, :0]
    layer = new_layer(case, num_kv_heads=K, dropout_rate=0.2 * s.dropout)
    whole = tf.function(lambda x: layer(x, **options), [tf.TensorSpec([None, None, WIDTH])], autograph=False)
    assert layer(x[:0], **options).shape == whole(x[:0]).shape == (0, case.length, D_MODEL)
    if not case.dynamic:
        with pytest.raises(ValueError, match="Got a sequence of 0"):
            layer(none)
        return
    assert layer(none).shape == whole(none).shape == layer(none, training=True).shape == (B, 0, D_MODEL)
    with tf.GradientTape() as tape:
        tape.watch(none)
        out = tf.reduce_sum(layer(none, **options))
    assert tape.gradient(out, none).shape == none.shape
    if s.padding_mask:
        assert layer(none, padding_mask=tf.ones([B, 0], tf.bool), **options).shape == (B, 0, D_MODEL)
    if s.cross:
        assert layer(v=x, k=x, q=none).shape == (B, 0, D_MODEL)
        assert np.isfinite(layer(v=none, k=none, q=x)).all()
    if s.state:
        no_tokens_into_a_state(layer, x)
    # What reads positions must not need one.
    for positions, taken in (("rotary", s.rotary), ("alibi", s.relative)):
        if taken:
            with subtests.test(positions=positions):
                layer = new_layer(case, positions=positions, head_dim=4)
                assert layer(none, **options).shape == (B, 0, D_MODEL)
                for size in (None, 4) if s.state else ():
                    assert layer(none, state=layer.init_state(B, size))[0].shape == (B, 0, D_MODEL)


def no_tokens_into_a_state(layer, x):
    """Reading nothing, before or between tokens, changes nothing that comes after."""
    for size in (None, 4):
        state = layer.init_state(B, size)
        one = tf.function(lambda x, state: layer(x, state=state), autograph=False)
        any_length = tf.TensorSpec([None, None, WIDTH])
        for run in (
            lambda x, state: layer(x, state=state),
            one.get_concrete_function(any_length, tf.nest.map_structure(open_spec, layer.init_state(B, size))),
        ):
            plain = moved = state
            outs = []
            for start, end in ((0, 2), (2, 3)):
                out, moved = run(x[:, :0], moved)
                assert out.shape == (B, 0, D_MODEL)
                for rows in (plain, moved):
                    out, rows = run(x[:, start:end], rows)
                    outs.append(out)
                    plain, moved = (rows, moved) if len(outs) % 2 else (plain, rows)
            close(outs[1], outs[0], 1e-6)
            close(outs[3], outs[2], 1e-6)


def open_spec(x):
    """The spec of a tensor of a state whose batch and stored positions are not known."""
    sizes = [None, *x.shape[1:]]
    if x.shape[-2:-1] == [0] or x.shape.rank == 2:
        sizes[-2 if x.shape.rank == 4 else -1] = None
    return tf.TensorSpec(sizes, x.dtype)


# --- refusals ------------------------------------------------------------------------------------------------------


@every_mechanism
def test_refuses_what_it_does_not_support(rng, case, subtests):
    s, length = supports(case), case.length
    layer = self_layer(case.name)
    x = sequence(rng, case)
    requests = {
        "cross": ("another sequence", {"v": x, "k": x, "q": x + 1}),
        "padding_mask": ("padding mask", {"v": x, "padding_mask": np.ones((B, length), bool)}),
        "free_mask": (r"free mask \(mask=\)", {"v": x, "mask": np.ones((B, length, length), bool)}),
        "bias": (r"additive bias \(bias=\)", {"v": x, "bias": np.zeros((length, length), "float32")}),
        "causal": ("use_causal_mask=True", {"v": x, "use_causal_mask": True}),
        "scores": ("return_attention_scores=True", {"v": x, "return_attention_scores": True}),
    }
    for what, (request, arguments) in requests.items():
        with subtests.test(what):
            if getattr(s, what):
                layer(**arguments)
            else:
                with pytest.raises(ValueError, match=rf"mechanism='{case.name}' does not support .*{request}.*; use "):
                    layer(**arguments)
    if s.state is None:
        with pytest.raises(ValueError, match=rf"mechanism='{case.name}' does not support a decoding state; use "):
            layer.init_state(B)
    if not s.temperature:
        with pytest.raises(ValueError, match=rf"mechanism='{case.name}' does not support temperature=2.0; use "):
            new_layer(case, temperature=2.0)
    assert s.onnx is True or (isinstance(s.onnx, str) and len(s.onnx) > 20), "onnx is True or a sentence that says why"
    assert "http" in s.paper and s.time and s.memory


# --- causality and padding -----------------------------------------------------------------------------------------


@every_mechanism
def test_the_future_moves_nothing_before_it(rng, case):
    """keras#23038: on no path, whatever is returned, compiled or built, does a later token reach an earlier row."""
    s = supports(case)
    if not s.causal:
        pytest.skip("not causal, as declared")
    layers = [self_layer(case.name)] + ([self_layer(case.name, dropout_rate=0.1)] if s.dropout else [])

    def paths(x):
        out = [layer(x, use_causal_mask=True, training=False) for layer in layers]
        if s.scores:
            out += [layer(x, use_causal_mask=True, return_attention_scores=True)[0] for layer in layers]
        return out

    x = sequence(rng, case, length=case.length)
    for run in (paths, graph_of(paths), graph_of(paths, jit_compile=True)):
        before = run(tf.constant(x))
        for start in (1, 3, case.length - 1):
            moved = x.copy()
            moved[:, start:] += 100
            for one, other in zip(before, run(tf.constant(moved)), strict=True):
                np.testing.assert_array_equal(one[:, :start], other[:, :start])
                assert np.abs(one[:, start:] - other[:, start:]).max() > 1


@every_mechanism
def test_padding_changes_nothing(rng, case, subtests):
    if not supports(case).padding_mask or not case.dynamic:
        pytest.skip("takes no padding, as declared")
    layer = self_layer(case.name, num_kv_heads=K)
    lengths = (3, 6)
    x = sequence(rng, case, length=6)
    garbage = 50 * sequence(rng, case, length=9)
    for causal in (False, True)[: 1 + supports(case).causal]:
        alone = [layer(x[i : i + 1, :n], use_causal_mask=causal) for i, n in enumerate(lengths)]
        padded = garbage.copy()
        for i, n in enumerate(lengths):
            padded[i, :n] = x[i, :n]
        keep = np.arange(9) < np.array(lengths)[:, None]
        for how in ("padding_mask", "v_mask"):
            with subtests.test(causal=causal, how=how):
                got = layer(padded, use_causal_mask=causal, **{how: keep})
                for i, n in enumerate(lengths):
                    close(got[i, :n], alone[i][0], 1e-5)


@every_mechanism
def test_rows_without_a_key_are_zero_with_zero_gradients(rng, case, subtests):
    """pytorch#160064, #41508: one convention on every path, and no NaN in any gradient."""
    s, length = supports(case), case.length
    situations = {}
    if s.padding_mask:
        keep = np.ones((B, length), bool)
        keep[1] = False
        situations["padding_mask"] = ({"padding_mask": keep}, np.repeat(~keep, 1, axis=1))
    if s.free_mask:
        free = np.ones((B, 1, length, length), bool)
        free[0, :, 2] = False
        empty = np.zeros((B, length), bool)
        empty[0, 2] = True
        situations["mask"] = ({"mask": free}, empty)
    if s.bias:
        bias = np.zeros((B, 1, length, length), "float32")
        bias[0, :, 3] = -np.inf
        empty = np.zeros((B, length), bool)
        empty[0, 3] = True
        situations["bias"] = ({"bias": bias}, empty)
    keep = np.ones((B, length), bool)
    keep[1, :2] = False
    situations["q_mask"] = ({"q_mask": keep}, ~keep)
    layers = [self_layer(case.name)] + ([self_layer(case.name, dropout_rate=0.1)] if s.dropout else [])
    for name, (arguments, empty) in situations.items():
        for layer, scores in itertools.product(layers, (False, True)[: 1 + s.scores]):
            with subtests.test(name, dropout=layer.dropout_rate, scores=scores):
                x = tf.constant(sequence(rng, case))
                calls = dict(arguments, **({"return_attention_scores": True} if scores else {}))
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    out = layer(x, **calls)
                    out = out[0] if scores else out
                    zero_rows = tf.boolean_mask(out, empty)
                    loss = tf.reduce_sum(zero_rows**2)
                joined = np.zeros((1, 1, layer.num_heads * layer.head_dim))
                zero = reference.project(joined, layer.output_projection)[0]
                close(zero_rows, np.broadcast_to(zero, zero_rows.shape), 1e-6)
                gradient = tape.gradient(loss, x)
                assert gradient is None or not np.asarray(gradient).any()
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    out = layer(x, **calls)
                    loss = tf.reduce_sum((out[0] if scores else out) ** 2)
                for gradient in tape.gradient(loss, [x, *layer.trainable_variables], unconnected_gradients="zero"):
                    assert np.isfinite(gradient).all()


@every_mechanism
def test_causal_with_fewer_keys_than_queries_has_zero_rows(rng, case):
    if not (supports(case).causal and supports(case).cross):
        pytest.skip("not causal cross-attention, as declared")
    layer = cross_layer(case.name)
    v, k = (sequence(rng, case, length=3, width=WIDTHS[part]) for part in ("v", "k"))
    q = sequence(rng, case, length=5, width=WIDTHS["q"])
    got = layer(v=v, k=k, q=q, use_causal_mask=True).numpy()
    close(got[:, :2], np.broadcast_to(layer.output_projection.bias, (B, 2, D_MODEL)), 1e-6)
    assert np.abs(got[:, 2:] - layer.output_projection.bias).max() > 1e-2


# --- gradients -----------------------------------------------------------------------------------------------------


@every_mechanism
def test_gradients_equal_differences_of_the_loop(rng, case):
    """In float64 against central differences of the reference: of the input, the bias and every weight."""
    layer = new_layer(case, num_kv_heads=K, dtype="float64")
    layer.build((None, None, WIDTH))
    layer.built = True
    randomize(layer)
    given = [name for name in ("padding", "bias", "causal") if name in itertools.chain(*subsets(case))]
    limits, bias, arguments = options_for(rng, given, case.length, case.length, layer.num_heads)
    x = tf.Variable(rng.normal(size=(B, case.length, WIDTH)))
    places = {"x": x, **{w.path: w for w in layer.trainable_variables}}
    if bias is not None:
        bias = tf.Variable(bias.astype("float64"))
        arguments["bias"] = places["bias"] = bias
    upstream = rng.normal(size=(B, case.length, layer.d_model))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x, **arguments) * upstream)
    gradients = tape.gradient(loss, [w.value if hasattr(w, "path") else w for w in places.values()])
    step = 1e-6
    for (name, place), gradient in zip(places.items(), gradients, strict=True):
        assert gradient is not None, name
        direction = rng.normal(size=place.shape)
        start, values = np.asarray(place), []
        for sign in (1, -1):
            place.assign(start + sign * step * direction)
            numbers = None if bias is None else bias.numpy()
            out = expected(layer, case, x.numpy(), limits=limits, bias=numbers)
            values.append((np.asarray(out) * upstream).sum())
        place.assign(start)
        want = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose((gradient.numpy() * direction).sum(), want, rtol=1e-5, atol=1e-6, err_msg=name)
        # The key's bias adds one number to all scores of a query: softmax does not see it.
        assert np.any(gradient.numpy()) or "bias" in name


@every_mechanism
def test_compiled_gradients_equal_eager_ones(rng, case):
    """XLA, from a graph that was traced without sizes wherever the mechanism allows it."""
    layer = self_layer(case.name, num_kv_heads=K)
    length = None if case.dynamic else case.length
    padded = supports(case).padding_mask
    arguments = [tf.constant(sequence(rng, case)), tf.constant(keep_some(rng, (B, case.length)))][: 1 + padded]
    spec = [tf.TensorSpec([None, length, WIDTH], tf.float32), tf.TensorSpec([None, length], tf.bool)][: 1 + padded]

    def gradients(x, keep=None):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x, padding_mask=keep, **causal_options(case))
            loss = tf.reduce_sum(tf.sin(out))
        return out, tape.gradient(loss, [x, *layer.trainable_variables])

    out, eager = gradients(*arguments)
    compiled_out, compiled = graph_of(gradients, input_signature=spec, jit_compile=True)(*arguments)
    close(compiled_out, out)
    for one, other in zip(eager, compiled, strict=True):
        assert np.isfinite(one).all()
        close(other, one, 1e-4)
    assert all(np.abs(g).max() > 1e-6 for g, w in zip(eager[1:], layer.trainable_variables) if "bias" not in w.path)


# --- dtypes --------------------------------------------------------------------------------------------------------


@every_mechanism
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64"])
def test_precision(rng, case, policy):
    """tensorflow#46064: the output has the compute dtype, and the value of float64 on the same rounded numbers."""
    policy = keras.DTypePolicy(policy)
    layer = new_layer(case, num_kv_heads=K, dtype=policy)
    compute = policy.compute_dtype
    x = tf.cast(tf.constant(rng.normal(size=(B, case.length, WIDTH))), compute)
    given = [name for name in ("padding", "bias", "causal") if name in itertools.chain(*subsets(case))]
    limits, bias, arguments = options_for(rng, given, case.length, case.length, layer.num_heads)
    layer.build((None, None, WIDTH))
    layer.built = True
    randomize(layer, compute)
    got = layer(x, **arguments)
    assert got.dtype == compute
    assert all(w.dtype == policy.variable_dtype for w in layer.trainable_variables)
    assert layer.mechanism.dtype_policy.name == policy.name
    want = expected(layer, case, tf.cast(x, tf.float64).numpy(), limits=limits, bias=bias)
    relative = dict(zip(("float16", "bfloat16"), case.half_tolerance), float32=case.tolerance, float64=1e-9)[compute]
    close(tf.cast(got, tf.float64), want, relative * max(1, np.abs(want).max()))


# --- decoding ------------------------------------------------------------------------------------------------------


def decode(layer, x, plan, state, keep=None):
    """Feeds x [B, N, E] in chunks of the sizes in `plan`; returns all outputs and the state."""
    parts, start = [], 0
    for size in plan:
        valid = {} if keep is None else {"padding_mask": keep[:, start : start + size]}
        out, state = layer(x[:, start : start + size], state=state, **valid)
        parts.append(out)
        start += size
    return tf.concat(parts, axis=1), state


with_state = pytest.mark.parametrize(
    "case", [c for c in cases.CASES if supports(c).state and c.dynamic], ids=lambda case: case.name
)
storages = pytest.mark.parametrize("max_length", [None, 12], ids=["growing", "fixed"])


@with_state
@storages
def test_prefill_and_steps_equal_one_pass(rng, case, max_length, subtests):
    layer = self_layer(case.name, num_kv_heads=K)
    x = sequence(rng, case, length=9)
    want = layer(x, use_causal_mask=True)
    close(want, expected(layer, case, x, limits=reference.Limits(causal=True)), case.tolerance)
    for plan in ([9], [1, 1, 1, 1, 5], [5, 1, 1, 1, 1], [3, 4, 2]):
        with subtests.test(plan=plan):
            got, _ = decode(layer, x, plan, layer.init_state(B, max_length))
            close(got, want, case.state_tolerance)


@with_state
@storages
@pytest.mark.parametrize("side", ["left", "right"])
def test_decoding_of_a_padded_batch_equals_each_row_alone(rng, case, max_length, side, subtests):
    if not supports(case).padding_mask:
        pytest.skip("takes no padding, as declared")
    layer = self_layer(case.name, num_kv_heads=K)
    lengths, longest, steps = (2, 5), 6, 3
    rows = [sequence(rng, case, batch=1, length=n + steps) for n in lengths]
    alone = [layer(row, use_causal_mask=True)[0] for row in rows]
    x = 50 * sequence(rng, case, length=longest + steps)
    keep = np.zeros((B, longest + steps), bool)
    for i, n in enumerate(lengths):
        start = longest - n if side == "left" else 0
        x[i, start : start + n], keep[i, start : start + n] = rows[i][0, :n], True
        x[i, longest:], keep[i, longest:] = rows[i][0, n:], True
    for plan in ([longest, 1, 1, 1], [4, 2, 2, 1]):
        with subtests.test(plan=plan):
            got, _ = decode(layer, x, plan, layer.init_state(B, max_length), keep)
            assert np.isfinite(got).all()
            for i, row in enumerate(alone):
                close(got[i][keep[i]], row, case.state_tolerance)


@with_state
@storages
def test_reordered_states_continue_their_parents(rng, case, max_length):
    layer = self_layer(case.name, num_kv_heads=K)
    x = sequence(rng, case, length=4)
    parents = [1, 0, 1]
    after = sequence(rng, case, batch=3, length=3)
    _, state = decode(layer, x, [3, 1], layer.init_state(B, max_length))
    state = layer.reorder_state(state, tf.constant(parents))
    got, _ = decode(layer, after, [1, 1, 1], state)
    want = layer(np.concatenate([x[parents], after], axis=1), use_causal_mask=True)[:, 4:]
    close(got, want, case.state_tolerance)


@with_state
def test_compiled_steps_keep_the_shapes_of_a_fixed_state(rng, case):
    """As tf.while_loop, XLA and a server need: a step maps a state to one of the same structure, shapes and dtypes."""
    layer = self_layer(case.name, num_kv_heads=K)
    x = sequence(rng, case, length=5)
    state = layer.init_state(B, 6)
    step = graph_of(lambda x, state: layer(x, state=state), jit_compile=True)
    parts = []
    for t in range(5):
        out, new = step(tf.constant(x[:, t : t + 1]), state)
        tf.nest.assert_same_structure(new, state)
        for one, other in zip(tf.nest.flatten(new), tf.nest.flatten(state)):
            assert one.shape == other.shape and one.dtype == other.dtype and one.shape[0] == B
        parts.append(out)
        state = new
    close(tf.concat(parts, axis=1), layer(x, use_causal_mask=True), case.state_tolerance)


@pytest.mark.parametrize("case", [c for c in cases.CASES if supports(c).state == "kv"], ids=lambda case: case.name)
def test_a_full_row_harms_no_other(rng, case):
    layer = self_layer(case.name, num_kv_heads=K)
    x = sequence(rng, case, length=7)
    keep = np.array([[True] * 4, [True] + [False] * 3])
    _, state = layer(x[:, :4], state=layer.init_state(B, 4), padding_mask=keep)
    row = x[1:, [0, 4, 5, 6]]
    want = layer(row, use_causal_mask=True)[0]
    step = graph_of(lambda x, state, keep: layer(x, state=state, padding_mask=keep))
    out, state = step(tf.constant(x[:, 4:6]), state, tf.ones([B, 2], tf.bool))  # row 0 has no place left
    assert np.isnan(out[0]).all()
    close(out[1], want[1:3], case.state_tolerance)
    np.testing.assert_array_equal(state["lengths"], [4, 3])
    # Padding needs no place, in eager code as little as in a graph.
    out, state = layer(x[:, 6:], state=state, padding_mask=np.array([[False], [True]]))
    assert np.isfinite(out).all()
    close(out[1], want[3:], case.state_tolerance)
    np.testing.assert_array_equal(state["lengths"], [4, 4])


# --- lengths that are not known ------------------------------------------------------------------------------------


@every_mechanism
def test_unknown_sizes(rng, case):
    if not case.dynamic:
        pytest.skip("works on one length, as declared")
    layer = self_layer(case.name, num_kv_heads=K)
    padded = supports(case).padding_mask
    spec = [tf.TensorSpec([None, None, WIDTH], tf.float32), tf.TensorSpec([None, None], tf.bool)][: 1 + padded]

    def call(x, keep=None):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x, padding_mask=keep, **causal_options(case))
            loss = tf.reduce_sum(tf.sin(out))
        return out, tape.gradient(loss, [x, *layer.trainable_variables])

    graph = tf.function(call, input_signature=spec)  # with AutoGraph, as in users' functions
    for batch, length in ((1, 1), (2, 7), (3, 12)):
        x = sequence(rng, case, batch, length)
        keep = [keep_some(rng, (batch, length))][:padded]
        got, gradients = graph(x, *keep)
        assert got.shape == (batch, length, D_MODEL)
        want, eager = call(tf.constant(x), *keep)
        close(got, want, 1e-5)
        for one, other in zip(gradients, eager, strict=True):
            close(one, other, 1e-4)


# --- configs, files and exports ------------------------------------------------------------------------------------


@every_mechanism
def test_config_alone_rebuilds_the_layer(rng, case):
    layer = self_layer(case.name, num_kv_heads=K, temperature=1.7 if supports(case).temperature else 1.0)
    config = json.loads(json.dumps(layer.get_config()))
    again = MultiHeadAttention.from_config(config)
    assert again.get_config() == layer.get_config()
    for key, value in case.options.items():
        assert layer.mechanism.get_config()[key] == value
    x = sequence(rng, case)
    again(x)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x, **causal_options(case)), layer(x, **causal_options(case)))


@every_mechanism
def test_name_object_and_config_mean_the_same(rng, case):
    cls = mechanisms.class_of(case.name)
    made = cls(**case.options)
    ways = [made, keras.saving.serialize_keras_object(made)]
    if not case.options:
        ways.append(case.name)
    x = sequence(rng, case)
    layers, outputs = [], []
    options = {"num_heads": H, "head_dim": D, "d_model": D_MODEL, **case.layer}
    for way in ways:
        layer = MultiHeadAttention(mechanism=way, **options)
        layer(x)
        if layers:
            layer.set_weights(layers[0].get_weights())
        layers.append(layer)
        outputs.append(layer(x))
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])
    twin = MultiHeadAttention(mechanism=made, **options)
    twin(x)
    assert twin.mechanism is not layers[0].mechanism and not made.built
    assert not {id(w) for w in twin.variables} & {id(w) for w in layers[0].variables}
    assert len(twin.variables) == len({id(w) for w in twin.variables})
    with pytest.raises((TypeError, ValueError), match="no_such_option"):
        cls(**case.options, no_such_option=1)


CHILD = """
import json, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
folder = Path(sys.argv[1])
x = {path.stem: np.load(path) for path in folder.glob("*.npy")}
out = {}
served = tf.saved_model.load(folder / "saved_model")
for name, value in x.items():
    out[f"saved_model/{name}"] = served.signatures[name](x=tf.constant(value))["y"].numpy()
assert "keras_attention" not in sys.modules
import keras
import keras_attention.layers
for name, value in x.items():
    out[f"keras/{name}"] = keras.models.load_model(folder / f"{name}.keras")(value).numpy()
np.savez(folder / "out.npz", **out)
"""


def test_keras_files_and_saved_models_give_the_same_in_a_new_process(rng, tmp_path, subtests):
    """All mechanisms in one child; the SavedModel runs there before keras_attention is imported."""
    module, signatures, x, want = tf.Module(), {}, {}, {}
    for case in cases.CASES:
        name, layer = case.name, self_layer(case.name, num_kv_heads=K)
        length = None if case.dynamic else case.length
        inputs = keras.Input((length, WIDTH))
        model = keras.Model(inputs, new_layer(case, num_kv_heads=K)(inputs, **causal_options(case)))
        model.set_weights(layer.get_weights())
        model.save(tmp_path / f"{name}.keras")

        def serve(x, model=model):
            return {"y": model(x)}

        # The weights alone: TensorFlow would trace a model that it finds there a second time.
        setattr(module, name, [w.value for w in model.weights])
        spec = tf.TensorSpec([None, length, WIDTH], tf.float32, name="x")
        signatures[name] = graph_of(serve, input_signature=[spec])
        x[name] = sequence(rng, case)
        np.save(tmp_path / f"{name}.npy", x[name])
        want[name] = layer(x[name], **causal_options(case)).numpy()
    tf.saved_model.save(module, tmp_path / "saved_model", signatures=signatures)
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    got = np.load(tmp_path / "out.npz")
    for name in want:
        with subtests.test(name):
            np.testing.assert_array_equal(got[f"keras/{name}"], want[name])
            close(got[f"saved_model/{name}"], want[name], 1e-5)


@every_mechanism
def test_onnx_equals_keras(rng, case):
    """One graph with a whole pass and, where there is a state, a step of it, at three lengths."""
    if supports(case).onnx is not True:
        pytest.skip(f"declared: {supports(case).onnx}")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    tf2onnx = pytest.importorskip("tf2onnx", reason="needs the extra [onnx]")
    layer = self_layer(case.name, num_kv_heads=K)
    length = None if case.dynamic else case.length
    padded = supports(case).padding_mask
    specs = [tf.TensorSpec([None, length, WIDTH], tf.float32, name="x")]
    if padded:
        specs.append(tf.TensorSpec([None, length], tf.bool, name="keep"))
    stateful = supports(case).state is not None and case.dynamic
    empty = layer.init_state(B) if stateful else {}
    if stateful:
        parts = tf.nest.flatten(empty)
        shapes = [[None] + [None if n == 0 else n for n in part.shape[1:]] for part in parts]
        specs += [tf.TensorSpec(s, part.dtype, name=f"past_{i}") for i, (s, part) in enumerate(zip(shapes, parts))]

    def run(x, *rest):
        out = {"y": layer(x, **causal_options(case), **({"padding_mask": rest[0]} if padded else {}))}
        if stateful:
            step, state = layer(x[:, -1:], state=tf.nest.pack_sequence_as(empty, rest[padded:]))
            out["step"] = step
            out |= {f"present_{i}": part for i, part in enumerate(tf.nest.flatten(state))}
        return out

    graph = graph_of(run, input_signature=specs)
    proto, _ = tf2onnx.convert.from_function(graph, input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    for batch, size in ((1, 1), (2, 7), (3, 12)) if case.dynamic else ((1, length), (3, length)):
        x = sequence(rng, case, batch, size)
        arguments = [x] + ([keep_some(rng, (batch, size))] if padded else [])
        if stateful:
            state = layer.init_state(batch)
            if size > 1:
                _, state = layer(x[:, :-1], state=state)
            arguments += [part.numpy() for part in tf.nest.flatten(state)]
        want = run(*map(tf.constant, arguments))
        feeds = {spec.name: value for spec, value in zip(specs, arguments)}
        got = dict(zip(outputs, session.run(outputs, {i.name: feeds[i.name] for i in session.get_inputs()})))
        assert set(got) == set(want)
        for name, value in want.items():
            close(got[name], value, 1e-5)
