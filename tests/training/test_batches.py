"""The batch plan: what an epoch holds, that it can begin anywhere, and that model.fit gets it as it is."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.text import BOS_ID, EOS_ID, PAD_ID
from keras_attention.training.translation.batches import BatchPlan


def ragged(rng, count, longest, shortest=0):
    return [rng.integers(4, 50, size=rng.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def pairs(rng, count=97, longest=30):
    return ragged(rng, count, longest), ragged(rng, count, longest - 7)


def strip(rows):
    return [[int(id) for id in row if id != PAD_ID] for row in np.asarray(rows)]


def contents(batches):
    """Sorted (source, target) of everything in some batches, after checking the three arrays against each other."""
    found = []
    for inputs, labels in batches:
        for source, target, label in zip(strip(inputs["source"]), strip(inputs["target"]), strip(labels)):
            if not source:
                assert not target and not label
                continue
            assert (source[0], source[-1]) == (BOS_ID, EOS_ID)
            assert target[0] == BOS_ID and label[-1] == EOS_ID and target[1:] == label[:-1]
            found.append((source[1:-1], label[:-1]))
        for rows in (inputs["source"], inputs["target"], labels):
            rows = np.asarray(rows)
            assert rows.dtype == np.int32
            assert not np.any((rows[:, :-1] == PAD_ID) & (rows[:, 1:] != PAD_ID)), "padding is on the right"
    return sorted(found)


def steps(batches):
    """Batches as plain lists, to compare the order too."""
    return [(inputs["source"].numpy().tolist(), labels.numpy().tolist()) for inputs, labels in batches]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("static_shapes", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("budget, multiple", [(64, 8), (200, 5), (10_000, 1), (32, 40)])
def test_every_pair_once_within_the_budget(rng, shuffle, static_shapes, budget, multiple):
    sources, targets = pairs(rng)
    plan = BatchPlan(
        sources,
        targets,
        tokens_per_batch=budget,
        max_length=32,
        length_multiple=multiple,
        shuffle=shuffle,
        static_shapes=static_shapes,
    )
    assert plan.dropped == 0
    for epoch in (0, 3):
        indices = np.concatenate(plan.epoch(epoch))
        assert sorted(indices) == list(range(97))
        assert len(plan.epoch(epoch)) == len(plan)
    batches = list(plan.dataset())
    assert contents(batches) == sorted(zip(sources, targets))
    for inputs, labels in batches:
        rows, length = inputs["source"].shape[0], max(inputs["source"].shape[1], labels.shape[1])
        assert rows * length <= budget and length <= 32
        assert inputs["target"].shape == labels.shape
        if static_shapes:
            assert (rows, length) in plan.shapes and inputs["source"].shape == labels.shape
        else:
            assert inputs["source"].shape[1] == np.count_nonzero(inputs["source"], axis=1).max()
    if not static_shapes:
        # The budget is used: no two neighbours (in length order) would have fitted into one batch.
        assert len(plan) <= 2 * sum(len(s) + 2 + multiple for s in sources) / budget + 1


def test_pairs_of_similar_length_share_a_batch(rng):
    sources, targets = pairs(rng, 500)
    plan = BatchPlan(sources, targets, tokens_per_batch=120, max_length=40, length_multiple=4)
    lengths = np.array([max(len(s) + 2, len(t) + 1) for s, t in zip(sources, targets)])
    mixed = sum(len(set(np.ceil(lengths[indices] / 4))) > 1 for indices in plan.epoch(0))
    assert mixed <= 8  # at most one batch across each border between buckets


def test_epochs_are_a_pure_function_of_seed_and_number(rng):
    sources, targets = pairs(rng)
    make = lambda seed: BatchPlan(sources, targets, tokens_per_batch=90, max_length=32, seed=seed)  # noqa: E731
    flat = lambda plan, number: [indices.tolist() for indices in plan.epoch(number)]  # noqa: E731
    plan, again = make(5), make(5)
    flat(again, 9)  # an epoch does not depend on those asked for earlier
    assert flat(plan, 2) == flat(again, 2) == flat(plan, 2)
    different = [flat(plan, 0), flat(plan, 1), flat(make(6), 0), flat(make(6), 1)]
    assert all(one != other for i, one in enumerate(different) for other in different[:i])


def test_without_shuffling_all_epochs_are_equal(rng):
    plan = BatchPlan(*pairs(rng), tokens_per_batch=90, max_length=32, shuffle=False)
    assert [i.tolist() for i in plan.epoch(0)] == [i.tolist() for i in plan.epoch(7)]


def test_iterations_are_epochs_and_can_begin_anywhere(rng):
    plan = BatchPlan(*pairs(rng), tokens_per_batch=300, max_length=32, seed=3)
    whole = plan.dataset()
    epochs = [steps(whole) for _ in range(3)]
    assert epochs[0] != epochs[1]
    for number, epoch in enumerate(epochs):
        assert epoch == [
            (inputs["source"].tolist(), labels.tolist()) for inputs, labels in map(plan.batch, plan.epoch(number))
        ]
    for step in (0, 1, 4, len(plan) - 1):
        resumed = plan.dataset(first_epoch=1, first_step=step)
        assert steps(resumed) == epochs[1][step:]
        assert steps(resumed) == epochs[2]
    assert steps(plan.dataset(first_epoch=0, first_step=len(plan))) == epochs[1]
    with pytest.raises(ValueError, match=f"first_step must be from 0 to {len(plan)}, .* Got {len(plan) + 1}"):
        plan.dataset(first_step=len(plan) + 1)


def test_an_abandoned_iteration_does_not_count_whatever_was_prefetched(rng):
    plan = BatchPlan(*pairs(rng), tokens_per_batch=600, max_length=32, seed=3)
    assert 3 <= len(plan) <= 6  # all but the last batch fit into the prefetch buffer
    dataset = plan.dataset()
    first = steps(dataset.take(1))
    assert steps(dataset.take(len(plan) - 1))[:1] == first
    assert steps(dataset)[:1] == first
    assert steps(dataset) == steps(plan.dataset(first_epoch=1))
    # Taking the last batch is enough: nobody has to ask for one more.
    taken = iter(dataset)
    for _ in range(len(plan)):
        next(taken)
    assert steps(dataset) == steps(plan.dataset(first_epoch=3))


@pytest.mark.parametrize("static_shapes", [True, False], ids=["static", "dynamic"])
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
def test_fit_sees_every_epoch_whole(rng, static_shapes):
    import keras

    plan = BatchPlan(
        *pairs(rng, 41), tokens_per_batch=90, max_length=32, length_multiple=16, seed=1, static_shapes=static_shapes
    )
    seen = []

    class Count(keras.Model):
        def train_step(self, data):
            inputs, labels = data
            tf.py_function(lambda *arrays: seen.append([a.numpy() for a in arrays]), [inputs["source"], labels], [])
            return {"loss": tf.reduce_sum(labels)}

    model = Count()
    model.compile()
    model.fit(plan.dataset(first_epoch=4), epochs=3, verbose=0)
    expected = []
    for epoch in (4, 5, 6):
        order, cuts = plan.planned(epoch)
        for begin, end, rows, length in cuts:
            expected.append(plan.batch(order[begin:end], (rows, length)))
    assert len(seen) == 3 * len(plan)
    for (source, labels), (inputs, expected_labels) in zip(seen, expected):
        np.testing.assert_array_equal(source, inputs["source"])
        np.testing.assert_array_equal(labels, expected_labels)
    assert plan.dataset().cardinality() == len(plan)
    assert plan.dataset(first_step=1).cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_static_shapes_are_few(rng):
    sources, targets = ragged(rng, 3000, 500), ragged(rng, 3000, 500)
    plan = BatchPlan(sources, targets, tokens_per_batch=4096, max_length=510, static_shapes=True)
    assert len(plan.shapes) <= 20
    assert all(rows * length <= 4096 and length <= 510 for rows, length in plan.shapes)
    real = sum(max(len(s) + 2, len(t) + 1) for s, t in zip(sources, targets))
    padding = 1 - real / sum(rows * length for _, _, rows, length in plan.planned(0)[1])
    assert padding < 0.25


def test_long_pairs_are_dropped_and_counted():
    sources = [[7] * n for n in (3, 8, 9, 2, 2)]
    targets = [[9] * n for n in (3, 2, 2, 9, 10)]
    plan = BatchPlan(sources, targets, tokens_per_batch=50, max_length=10)
    assert plan.dropped == 2  # a source of 9 + 2 special ids, a target of 10 + 1
    assert sorted(np.concatenate(plan.epoch(0))) == [0, 1, 3]


def test_empty_sides_are_rows_of_special_ids():
    inputs, labels = next(iter(BatchPlan([[]], [[]], tokens_per_batch=50, max_length=10).dataset()))
    assert inputs["source"].numpy().tolist() == [[BOS_ID, EOS_ID]]
    assert inputs["target"].numpy().tolist() == [[BOS_ID]]
    assert labels.numpy().tolist() == [[EOS_ID]]


def test_wrong_input_is_explained():
    with pytest.raises(ValueError, match=r"each source needs its target. Got 2 source_ids and 1 target_ids"):
        BatchPlan([[5], [6]], [[5]], tokens_per_batch=50, max_length=10)
    with pytest.raises(UsageError, match="none of 2 pairs has at most max_length=3 tokens; the shortest needs 4"):
        BatchPlan([[5] * 2, [6] * 5], [[5], [6]], tokens_per_batch=50, max_length=3)
    with pytest.raises(UsageError, match=r"none of 0 pairs has at most max_length=3 tokens$"):
        BatchPlan([], [], tokens_per_batch=50, max_length=3)
    with pytest.raises(UsageError, match="the longest pair has 12 tokens, more than tokens_per_batch=11: raise"):
        BatchPlan([[5] * 10], [[5]], tokens_per_batch=11, max_length=12)
    for name, value in (("tokens_per_batch", 0), ("max_length", -1), ("length_multiple", 2.5), ("seed", -1)):
        arguments = {"tokens_per_batch": 50, "max_length": 10, name: value}
        with pytest.raises(UsageError, match=f"{name} must be a whole number of at least .. Got {value}"):
            BatchPlan([[5]], [[5]], **arguments)
