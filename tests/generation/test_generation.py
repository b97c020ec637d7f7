"""Greedy and beam search against brute force in float64, over a toy model with the state of a real one."""

import itertools

import numpy as np
import pytest
import reference_generation as reference
import tensorflow as tf
from reference_generation import ToyModel, reorder

from keras_attention.generation import beam_search, greedy, greedy_uncached
from keras_attention.generation.array_beam import array_beam_search
from keras_attention.generation.loop import run_loop

START, END, PAD = 1, 2, 0


def rows_of(result, row):
    """`(tokens, score)` of every hypothesis of one row that exists, with the padding checked."""
    tokens, lengths, scores = (np.atleast_1d(part.numpy()[row]) for part in result[:3])
    tokens = tokens.reshape(len(lengths), -1)
    assert all((line[length:] == PAD).all() for line, length in zip(tokens, lengths))
    return [(line[:n].tolist(), float(s)) for line, n, s in zip(tokens, lengths, scores) if s > -np.inf]


def assert_same(result, other):
    for name in result._fields:
        np.testing.assert_array_equal(getattr(result, name), getattr(other, name), err_msg=name)


def assert_hypotheses(result, row, expected):
    """`expected`: `(score, tokens)`, best first."""
    got = rows_of(result, row)
    assert [tokens for tokens, _ in got] == [tokens for _, tokens in expected]
    np.testing.assert_allclose([score for _, score in got], [score for score, _ in expected], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("capacity", [None, 9], ids=["growing", "fixed"])
def test_greedy_equals_a_loop(rng, capacity):
    model = ToyModel(rng, vocabulary=7, capacity=capacity)
    memory = rng.normal(0, 1, (5, 7))
    result = greedy(model.step, model.state(memory), [START] * 5, end_id=END, max_new_tokens=9)
    assert result.tokens.shape == (5, 9)
    assert len(set(result.lengths.numpy().tolist())) > 1  # or the rows would show nothing of ending apart
    for row in range(5):
        tokens, score = reference.greedy(model, memory[row], START, end_id=END, limit=9)
        assert_hypotheses(result, row, [(score, tokens)])
    assert not result.overflow.numpy().any()


@pytest.mark.parametrize("beams", [1, 2, 3, 5])
@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.6, 1.4])
def test_beam_equals_lists_without_an_early_stop(rng, beams, alpha):
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1, (4, 6))
    memory[:, END] -= 1.5  # some length before the end
    options = {"beams": beams, "end_id": END}
    result = beam_search(
        model.step, reorder, model.state(memory), [START] * 4, max_new_tokens=8, length_penalty=alpha, **options
    )
    assert result.tokens.shape == (4, beams, 8)
    for row in range(4):
        expected = reference.beam(model, memory[row], START, limit=8, alpha=alpha, **options)
        assert_hypotheses(result, row, expected)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_beams_as_many_as_tokens_search_two_steps_exhaustively(rng, alpha):
    model = ToyModel(rng, vocabulary=5)
    memory = rng.normal(0, 1, (3, 5))
    result = beam_search(
        model.step,
        reorder,
        model.state(memory),
        [START] * 3,
        beams=5,
        end_id=END,
        max_new_tokens=2,
        length_penalty=alpha,
    )
    for row in range(3):
        best = reference.every_sequence(model, memory[row], START, end_id=END, limit=2, alpha=alpha)[:5]
        assert_hypotheses(result, row, best)


def test_more_beams_than_sequences_list_them_all(rng):
    model = ToyModel(rng, vocabulary=3)
    memory = rng.normal(0, 1, (2, 3))
    result = beam_search(model.step, reorder, model.state(memory), [START] * 2, beams=40, end_id=END, max_new_tokens=4)
    for row in range(2):
        everything = reference.every_sequence(model, memory[row], START, end_id=END, limit=4, alpha=0.6)
        assert len(everything) < 40
        assert_hypotheses(result, row, everything)
    absent = ~np.isfinite(result.scores.numpy())
    assert (result.lengths.numpy()[absent] == 0).all() and (result.tokens.numpy()[absent] == PAD).all()
    assert not np.isnan(result.scores.numpy()).any()


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_one_beam_is_the_greedy_search(rng, alpha):
    model = ToyModel(rng, vocabulary=11)
    state = model.state(rng.normal(0, 1, (6, 11)))
    limits = [9, 3, 9, 0, 7, 1]
    one = greedy(model.step, state, [START] * 6, end_id=END, max_new_tokens=limits)
    same = beam_search(
        model.step, reorder, state, [START] * 6, beams=1, end_id=END, max_new_tokens=limits, length_penalty=alpha
    )
    np.testing.assert_array_equal(one.tokens, same.tokens[:, 0])
    np.testing.assert_array_equal(one.lengths, same.lengths[:, 0])
    penalty = reference.penalty(one.lengths.numpy(), alpha)
    np.testing.assert_allclose(one.scores / penalty, same.scores[:, 0], rtol=1e-6)


def test_a_row_depends_neither_on_the_others_nor_on_their_order(rng):
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1.5, (5, 6)).astype("float32")
    limits = np.array([6, 2, 9, 0, 4])

    def search(rows, beams):
        options = {"end_id": END, "max_new_tokens": limits[rows]}
        if beams:
            return beam_search(model.step, reorder, model.state(memory[rows]), [START] * len(rows), beams=3, **options)
        return greedy(model.step, model.state(memory[rows]), [START] * len(rows), **options)

    for beams in (False, True):
        together = search(np.arange(5), beams)
        shuffled = search(np.array([3, 0, 4, 2, 1]), beams)
        for place, row in enumerate([3, 0, 4, 2, 1]):
            for one in (rows_of(shuffled, place), rows_of(search(np.array([row]), beams), 0)):
                expected = rows_of(together, row)
                assert [t for t, _ in one] == [t for t, _ in expected]
                np.testing.assert_allclose([s for _, s in one], [s for _, s in expected], rtol=1e-6)
        assert together.lengths.numpy().max() <= limits.max()
        assert (together.lengths.numpy().reshape(5, -1).max(axis=1) <= limits).all()


@pytest.mark.parametrize("alpha, steps", [(0.0, 2), (0.6, 37), (-0.6, 2)])
def test_an_ended_hypothesis_is_frozen_and_the_search_stops_when_nothing_can_beat_it(alpha, steps):
    """The end is nearly certain at once, and the second answer, with a sum of -12.70, comes in the second step.

    From then on a hypothesis at -12.70 loses 0.91 in each step. Without a penalty it cannot win any more. With 0.6 it
    could until its sum over the penalty of fifty tokens, 3.78, is below -12.70 / 1.097: after 35 steps more.
    """
    table = np.zeros((6, 6), "float32")
    table[:, START] = -30.0
    table[START] = -30.0
    table[START, [END, 0]] = 12.0, 0.0
    table[0, END] = table[0, 3] = 5.0
    table[3, [0, 3]] = -30.0, 0.7
    calls = []

    def step(tokens, state):
        calls.append(tokens.shape[0])
        return tf.gather(table, tokens), state

    result = beam_search(step, reorder, {}, [START], beams=2, end_id=END, max_new_tokens=50, length_penalty=alpha)
    answers = rows_of(result, 0)
    assert answers[0][0] == [END] and answers[1][0] == [0, END]
    np.testing.assert_allclose(answers[0][1], -np.log1p(np.exp(-12.0)) / reference.penalty(1, alpha), atol=1e-6)
    assert len(calls) == steps


def in_both_searches(table, **options):
    """The answers for START, best first, of the search in TensorFlow after the one in NumPy was seen to equal it."""

    def step(tokens, state):
        return tf.gather(table, tokens), state

    result = beam_search(step, reorder, {}, [START], **options)
    options["max_new_tokens"] = [options["max_new_tokens"]]
    arrays = array_beam_search(
        lambda tokens, state: (table[tokens], state), lambda state, parents: state, {}, [START], pad_id=PAD, **options
    )
    np.testing.assert_array_equal(arrays.tokens, result.tokens)
    np.testing.assert_allclose(arrays.scores, result.scores, rtol=1e-6)
    return rows_of(result, 0)


def test_an_ended_hypothesis_takes_no_place():
    """Case 93: the end with 0.5, a with 0.3, b with 0.2, and b alone goes on, at 0.99 a token: -0.905 at alpha 1."""
    a, b = 3, 4
    p = np.full((5, 5), 1e-9)
    p[START, [END, a, b]] = 0.5, 0.3, 0.2
    p[a, [END, a, b]] = 0.1, 0.45, 0.45
    p[b, b] = 0.99
    p[[a, b], PAD] = 1e-9
    p[b, END] = 0.01
    answers = in_both_searches(
        np.log(p / p.sum(axis=1, keepdims=True)).astype("float32"),
        beams=2,
        end_id=END,
        max_new_tokens=6,
        length_penalty=1.0,
    )
    want = [(-np.log(2.0), [END]), ((np.log(0.2) + 5 * np.log(0.99)) / (11 / 6), [b] * 6)]
    assert [tokens for tokens, _ in answers] == [tokens for _, tokens in want]
    np.testing.assert_allclose([score for _, score in answers], [score for score, _ in want], atol=1e-5)
    np.testing.assert_allclose(answers[1][1], -0.905, atol=5e-4)


@pytest.mark.parametrize("beams", [2, 3, 5, 8])
def test_as_many_hypotheses_run_after_ends_as_before(rng, beams):
    """Every hypothesis' likeliest token is the end, so that one that took a place would leave none to run."""
    table = rng.normal(0, 1, (9, 9)).astype("float32")
    table[:, END] = table.max(axis=1) + 0.5
    seen = []

    def step(tokens, state):
        seen.append(int((tokens.numpy() != PAD).sum()))
        return tf.gather(table, tokens), state

    options = {"beams": beams, "end_id": END, "max_new_tokens": 4, "forbidden": (PAD,), "length_penalty": 3.0}
    beam_search(step, reorder, {}, [START], **options)
    # All K rows read the start; from then on a row that holds no hypothesis reads padding.
    assert seen == [beams, min(beams, 7), beams, beams]


def test_an_early_end_does_not_stop_a_search_that_a_longer_answer_wins():
    """At alpha 1 a certain continuation of ten tokens beats an end at once; the bound must leave it time to."""
    V = 4
    table = np.full((V, V), -30.0, "float32")
    table[START] = [-30, -30, 0.3, 0.0]  # the end is likelier than token 3
    table[3, 3] = 30.0  # and token 3 repeats for certain

    def step(tokens, state):
        return tf.gather(table, tokens), state

    options = {"beams": 2, "end_id": END, "max_new_tokens": 10}
    result = beam_search(step, reorder, {}, [START], length_penalty=1.0, **options)
    assert rows_of(result, 0)[0][0] == [3] * 10
    assert rows_of(result, 0)[1][0] == [END]
    result = beam_search(step, reorder, {}, [START], length_penalty=0.0, **options)
    assert [tokens for tokens, _ in rows_of(result, 0)] == [[END], [3] * 10]


def test_a_negative_penalty_is_largest_at_the_next_token():
    """Two answers are there when the third, better than the second, needs one token more."""
    table = np.full((5, 5), -30.0, "float32")
    table[START, [END, 3]] = 0.0
    table[3, [4, END]] = 0.0, -0.2
    table[4, END] = 30.0

    answers = in_both_searches(table, beams=2, end_id=END, max_new_tokens=50, length_penalty=-0.6)
    assert [tokens for tokens, _ in answers] == [[END], [3, 4, END]]


@pytest.mark.parametrize("beams", [None, 2])
def test_what_has_ended_is_stepped_with_padding(rng, beams):
    """So that a model that reads over padding keeps its state, and never runs past its end."""
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1, (3, 6)).astype("float32")
    memory[0, END] = memory[1, 5] = 30  # ends at once; never ends
    passed = []

    def step(tokens, state):
        passed.append(tokens.numpy().reshape(3, -1))
        return model.step(tokens, state)

    options = {"end_id": END, "max_new_tokens": [9, 6, 2]}
    if beams:
        beam_search(step, reorder, model.state(memory), [START] * 3, beams=2, **options)
    else:
        greedy(step, model.state(memory), [START] * 3, **options)
    assert len(passed) == 6
    for tokens in passed[2:]:
        assert (tokens[2] == PAD).all() and (tokens[1] == 5).any()
        assert beams or (tokens[0] == PAD).all()


def test_length_penalty_counts_generated_tokens_only(rng):
    """A prompt that was prefilled changes the state and not the penalty."""
    model = ToyModel(rng, vocabulary=5)
    memory = rng.normal(0, 1, (1, 5))
    prompt = [START, 3, 4, 3, 1, 4]
    state = model.state(memory)
    for token in prompt[:-1]:
        _, state = model.step(tf.constant([token]), state)
    result = beam_search(model.step, reorder, state, prompt[-1:], beams=5, end_id=END, max_new_tokens=2)

    class Prompted:
        vocabulary = 5

        def log_probs(self, memory, prefix):
            return model.log_probs(memory, [*prompt[:-1], *prefix])

    expected = reference.every_sequence(Prompted(), memory[0], prompt[-1], end_id=END, limit=2, alpha=0.6)[:5]
    assert_hypotheses(result, 0, expected)


def test_every_kind_of_state_follows_its_hypothesis(rng):
    """Case 16: keys and values, lengths, masks, a recurrent sum, each one row a hypothesis, of two sentences.

    The step checks what it is given: whatever the search does, the tokens in each kind of state must be one history,
    and the memory must be that of the hypothesis' own sentence.
    """
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1.0, (2, 6)).astype("float32")
    histories = []

    def step(tokens, state):
        logits, inner = model.step(tokens, state["inner"])
        seen = tf.concat([state["seen"], tokens[:, None]], axis=1)
        number = state["number"] * 6.0 + tf.cast(tokens, tf.float64)
        # Another history reads as another number in base 6, another length or another mask.
        base = 6.0 ** np.arange(seen.shape[1])[::-1]
        np.testing.assert_array_equal(number, seen.numpy() @ base)
        np.testing.assert_array_equal(state["lengths"] + 1, seen.shape[1])
        mask = tf.concat([state["mask"], (tokens > 3)[:, None]], axis=1)
        np.testing.assert_array_equal(mask, seen.numpy() > 3)
        np.testing.assert_array_equal(inner["self"]["keys"], model.embedding[seen.numpy()])
        np.testing.assert_array_equal(state["inner"]["memory"], memory[state["sentence"].numpy()])
        np.testing.assert_array_equal(state["sentence"], [0, 0, 0, 1, 1, 1])
        histories.append(seen.numpy())
        after = {"inner": inner, "seen": seen, "number": number, "mask": mask}
        return logits, {**after, "lengths": state["lengths"] + 1, "sentence": state["sentence"]}

    state = {
        "inner": model.state(memory),
        "seen": tf.zeros([2, 0], tf.int32),
        "number": tf.zeros([2], tf.float64),
        "lengths": tf.zeros([2], tf.int32),
        "mask": tf.zeros([2, 0], tf.bool),
        "sentence": tf.range(2),
    }
    beam_search(step, reorder, state, [START] * 2, beams=3, end_id=-1, max_new_tokens=6)
    # Histories really moved between places, or the test would show nothing.
    assert any((after[:, :-1] != before).any() for before, after in itertools.pairwise(histories))


def test_reorder_of_case_16():
    """Both beams continue parent 1; parent 0 would give [1.669762, 0]."""
    keys = tf.constant([[[1.0, 0], [2, 0]], [[0, 1], [0, 3]]])
    keys = reorder({"keys": keys}, tf.constant([1, 1]))["keys"]
    weights = tf.nn.softmax(tf.linalg.matvec(keys, [1.0, 1.0]) / np.sqrt(2.0))
    np.testing.assert_allclose(tf.einsum("bs,bsd->bd", weights, keys), [[0, 2.608859]] * 2, atol=1e-6)


@pytest.mark.parametrize("beams", [None, 1, 3])
def test_unusable_logits_end_their_row_alone(rng, beams):
    """Row 1 meets NaN at its third step, row 2 +inf at its first; row 0 and 3 are as without them."""
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1, (4, 6))
    memory[:, END] -= 3

    def search(broken):
        def step(tokens, state):
            logits, inner = model.step(tokens, state["inner"])
            place = tf.shape(inner["self"]["keys"])[1]
            bad = broken & (state["row"] == 1) & (place == 3)
            logits = tf.where(bad[:, None] & (tf.range(6) == 4), np.nan, logits)
            logits = tf.where((broken & (state["row"] == 2))[:, None] & (tf.range(6) == 1), np.inf, logits)
            return logits, {"inner": inner, "row": state["row"]}

        state = {"inner": model.state(memory), "row": tf.range(4)}
        if beams:
            return beam_search(step, reorder, state, [START] * 4, beams=beams, end_id=END, max_new_tokens=5)
        return greedy(step, state, [START] * 4, end_id=END, max_new_tokens=5)

    sound, broken = search(False), search(True)
    assert broken.overflow.numpy().tolist() == [0, 1, 1, 0] and not sound.overflow.numpy().any()
    for row in (0, 3):
        assert rows_of(sound, row) == rows_of(broken, row)
    assert max(len(tokens) for tokens, _ in rows_of(broken, 1)) == 2
    if beams != 3:
        assert rows_of(broken, 1)[0][0] == rows_of(sound, 1)[0][0][:2]
    assert rows_of(broken, 2) == [([], 0.0)]
    assert not np.isnan(broken.scores.numpy()).any()


def test_a_full_state_ends_the_row_and_keeps_its_tokens(rng):
    fixed, growing = (ToyModel(np.random.default_rng(5), vocabulary=9, capacity=c) for c in (4, None))
    memory = rng.normal(0, 1, (3, 9))
    short = greedy(fixed.step, fixed.state(memory), [START] * 3, end_id=-1, max_new_tokens=7)
    long = greedy(growing.step, growing.state(memory), [START] * 3, end_id=-1, max_new_tokens=4)
    np.testing.assert_array_equal(short.tokens[:, :4], long.tokens)
    np.testing.assert_array_equal(short.lengths, [4, 4, 4])
    np.testing.assert_array_equal(short.overflow, [1, 1, 1])


def test_forbidden_tokens_are_never_taken_and_make_no_nan():
    """-inf forbids: with one token allowed there is one answer, however many beams ask."""
    logits = np.array([[-np.inf, -np.inf, -np.inf, 0.5]], "float32")

    def step(tokens, state):
        return tf.repeat(logits, tf.shape(tokens)[0], axis=0), state

    result = beam_search(step, reorder, {}, [START], beams=3, end_id=END, max_new_tokens=3)
    assert rows_of(result, 0) == [([3, 3, 3], 0.0)]
    result = greedy(step, {}, [START], end_id=END, max_new_tokens=3)
    assert rows_of(result, 0) == [([3, 3, 3], 0.0)] and result.overflow.numpy().tolist() == [0]

    options = {"end_id": END, "max_new_tokens": 3, "forbidden": (3, PAD)}
    assert greedy(step, {}, [START], **options).overflow.numpy().tolist() == [1]

    def nothing_allowed(tokens, state):
        return tf.fill([tf.shape(tokens)[0], 4], -np.inf), state

    assert greedy(nothing_allowed, {}, [START], end_id=END, max_new_tokens=3).overflow.numpy().tolist() == [1]


@pytest.mark.parametrize("beams", [None, 3])
def test_forbidden_ids_are_as_if_not_in_the_vocabulary(rng, beams):
    """Their logits are the highest ones, or NaN, which ends the row as it does anywhere."""
    logits = rng.normal(0, 1, (3, 7)).astype("float32")
    logits[:, [0, 5]] += 9
    logits[2, 5] = np.nan
    others = [1, 2, 3, 4, 6]

    def search(columns, end_id, forbidden):
        def step(tokens, state):
            return tf.gather(logits[:, columns], state), state

        options = {"end_id": end_id, "max_new_tokens": 4, "forbidden": forbidden}
        if beams:
            return beam_search(step, reorder, tf.range(3), [1] * 3, beams=beams, **options)
        return greedy(step, tf.range(3), [1] * 3, **options)

    whole, part = search(np.arange(7), 2, (0, 5)), search(others, 1, ())
    for row in range(2):
        expected = [([others[token] for token in tokens], score) for tokens, score in rows_of(part, row)]
        got = rows_of(whole, row)
        assert [tokens for tokens, _ in got] == [tokens for tokens, _ in expected]
        np.testing.assert_allclose([score for _, score in got], [score for _, score in expected], rtol=1e-6)
    assert whole.overflow.numpy().tolist() == [0, 0, 1]


def test_ties_take_the_lowest_token():
    def step(tokens, state):
        return tf.zeros([tf.shape(tokens)[0], 5]), state

    result = greedy(step, {}, [START] * 2, end_id=END, max_new_tokens=3)
    assert result.tokens.numpy().tolist() == [[0, 0, 0]] * 2
    result = beam_search(step, reorder, {}, [START] * 2, beams=2, end_id=-1, max_new_tokens=2, length_penalty=0.0)
    assert result.tokens.numpy().tolist() == [[[0, 0], [0, 1]]] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_half_logits_are_scored_in_float32(rng, dtype):
    """The sum over 5000 equal tokens is beyond float16's grid: a half log-softmax is wrong in the third digit."""
    logits = tf.cast(rng.normal(0, 0.01, (1, 5000)), dtype)

    def step(tokens, state):
        return logits, state

    result = greedy(step, {}, [START], end_id=-1, max_new_tokens=1)
    exact = tf.cast(logits, tf.float64).numpy()[0]
    expected = exact.max() - np.log(np.exp(exact).sum())
    assert result.scores.dtype == tf.float32
    np.testing.assert_allclose(result.scores.numpy()[0], expected, rtol=1e-6)


@pytest.mark.parametrize("beams", [None, 2])
def test_limits(rng, beams):
    model = ToyModel(rng, vocabulary=4)

    def search(batch, limit, **options):
        state, start = model.state(np.zeros((batch, 4))), np.full([batch], START)
        if beams:
            return beam_search(model.step, reorder, state, start, beams=2, max_new_tokens=limit, **options)
        return greedy(model.step, state, start, max_new_tokens=limit, **options)

    nothing = search(3, 0, end_id=END)
    assert nothing.tokens.shape[-1] == 0 and not nothing.lengths.numpy().any()
    assert rows_of(nothing, 1) == [([], 0.0)]
    assert search(1, 5, end_id=-1).lengths.numpy().max() == 5  # never ends by itself
    rows = search(3, tf.constant([2, -4, 2**40], tf.int64), end_id=-1, buffer_length=6)
    assert rows.tokens.shape[-1] == 6 and rows.lengths.numpy().reshape(3, -1)[:, 0].tolist() == [2, 0, 6]
    assert search(0, 3, end_id=END).tokens.shape[0] == 0


def test_inside_a_graph_of_unknown_sizes(rng, tmp_path):
    """One trace serves every batch size and limit, saved and loaded, with a state that grows."""
    model = ToyModel(rng, vocabulary=6)
    memory = rng.normal(0, 1, (5, 6)).astype("float32")

    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32)])
        def one(self, memory, limits):
            start = tf.fill(tf.shape(memory)[:1], START)
            return greedy(model.step, model.state(memory), start, end_id=END, max_new_tokens=limits)._asdict()

        @tf.function(input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32)])
        def many(self, memory, limits):
            start = tf.fill(tf.shape(memory)[:1], START)
            options = {"beams": 8, "end_id": END, "max_new_tokens": limits}
            return beam_search(model.step, reorder, model.state(memory), start, **options)._asdict()

    served = Served()
    tf.saved_model.save(served, tmp_path / "m", signatures={"one": served.one, "many": served.many})
    loaded = tf.saved_model.load(tmp_path / "m")
    for rows, limits in ((1, [4]), (5, [7, 0, 3, 9, 2]), (3, [1, 1, 1])):
        inputs = {"memory": tf.constant(memory[:rows]), "limits": tf.constant(limits)}
        arguments = {"end_id": END, "max_new_tokens": limits}
        eager = {
            "one": greedy(model.step, model.state(memory[:rows]), [START] * rows, **arguments),
            "many": beam_search(model.step, reorder, model.state(memory[:rows]), [START] * rows, beams=8, **arguments),
        }
        for name, expected in eager.items():
            got = loaded.signatures[name](**inputs)
            np.testing.assert_array_equal(got["tokens"], expected.tokens)
            np.testing.assert_array_equal(got["lengths"], expected.lengths)
            np.testing.assert_allclose(got["scores"], expected.scores, rtol=1e-5)
            np.testing.assert_array_equal(got["overflow"], expected.overflow)


@pytest.mark.parametrize("beams", [None, 3])
def test_compiled_by_xla(rng, beams):
    model = ToyModel(rng, vocabulary=6, capacity=5)
    memory = rng.normal(0, 1, (4, 6)).astype("float32")

    def search(memory, limits):
        start, state = tf.fill(tf.shape(memory)[:1], START), model.state(memory)
        options = {"end_id": END, "max_new_tokens": limits, "buffer_length": 7}
        if beams:
            return beam_search(model.step, reorder, state, start, beams=beams, **options)
        return greedy(model.step, state, start, **options)

    limits = tf.constant([7, 2, 0, 6])
    compiled, eager = tf.function(search, jit_compile=True)(memory, limits), search(memory, limits)
    np.testing.assert_array_equal(compiled.tokens, eager.tokens)
    np.testing.assert_array_equal(compiled.lengths, eager.lengths)
    np.testing.assert_array_equal(compiled.overflow, eager.overflow)
    np.testing.assert_allclose(compiled.scores, eager.scores, rtol=1e-5)


def test_uncached_equals_cached(rng):
    model = ToyModel(rng, vocabulary=8)
    memory = rng.normal(0, 1, (3, 8)).astype("float32")

    def logits_fn(tokens):
        state, columns = model.state(memory), []
        for position in range(tokens.shape[1]):
            logits, state = model.step(tokens[:, position], state)
            columns.append(logits)
        return tf.stack(columns, axis=1)

    arguments = {"end_id": END, "max_new_tokens": 6}
    uncached = greedy_uncached(logits_fn, [START] * 3, **arguments)
    assert_same(uncached, greedy(model.step, model.state(memory), [START] * 3, **arguments))


def test_a_body_that_changes_the_kind_of_a_value_is_named():
    def search(body):
        return tf.function(lambda: run_loop(lambda i, x: i < 3, body, (tf.constant(0), {"x": tf.ones([2])})))()

    with pytest.raises(ValueError, match=r"dtype and rank it was given\. Got int32"):
        search(lambda i, state: (i + 1, {"x": tf.cast(state["x"], tf.int32)}))
    with pytest.raises(ValueError, match="structure it was given"):
        search(lambda i, state: (i + 1, {"x": state["x"], "y": state["x"]}))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"start_tokens": [[1], [1]]}, r"start_tokens must have shape \[B\].*\(2, 1\).*prefill"),
        ({"start_tokens": [1.0, 2.0]}, "integer token ids. Got dtype float32"),
        ({"max_new_tokens": -1}, "max_new_tokens must be a whole number of at least 0. Got -1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number of at least 0. Got 2.5"),
        ({"max_new_tokens": [1, 2, 3]}, r"one limit for each row. Got shape \(3,\)"),
        ({"max_new_tokens": [1.0, 2.0]}, "dtype float32"),
        ({"buffer_length": -2}, "buffer_length"),
        ({"forbidden": (1, -1)}, "every id in forbidden must be a whole number of at least 0. Got -1"),
        ({"pad_id": -1}, "pad_id must be a whole number of at least 0"),
        ({"beams": 0}, "beams must be a whole number of at least 1. Got 0"),
        ({"beams": True}, "beams must be a whole number"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number"),
        ({"step": lambda tokens, state: (tf.zeros([2, 1, 4]), state)}, r"logits of shape \[B, V\].*\(2, 1, 4\)"),
    ],
    # The value of a step is a function, whose text is another in each process.
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_arguments_are_named(changed, message):
    arguments = {
        "step": lambda tokens, state: (tf.zeros([tokens.shape[0], 4]), state),
        "state": {},
        "start_tokens": [1, 1],
        "end_id": END,
        "max_new_tokens": 3,
    } | changed
    with pytest.raises((ValueError, TypeError), match=message):
        beam_search(reorder=reorder, **{"beams": 2} | arguments)
    if not {"beams", "length_penalty"} & set(changed):
        with pytest.raises((ValueError, TypeError), match=message):
            greedy(**arguments)
