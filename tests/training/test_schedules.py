"""The learning rate: its values, its peak and its way through a saved optimizer."""

import keras
import numpy as np
import pytest

from keras_attention.training.optimization.schedules import WarmupInverseSqrt


def test_it_is_the_schedule_of_the_paper():
    d_model, warmup = 48, 7
    schedule = WarmupInverseSqrt(peak=d_model**-0.5 * warmup**-0.5, warmup_steps=warmup)
    for done in range(40):
        n = done + 1
        expected = d_model**-0.5 * min(n**-0.5, n * warmup**-1.5)
        assert float(schedule(done)) == pytest.approx(expected, rel=1e-6)


def test_the_peak_is_reached_once_at_the_end_of_the_warm_up():
    rates = [float(WarmupInverseSqrt(3e-3, 5)(step)) for step in range(20)]
    assert int(np.argmax(rates)) == 4
    assert max(rates) == pytest.approx(3e-3)
    assert rates[0] > 0


def test_no_warm_up_starts_at_the_peak():
    schedule = WarmupInverseSqrt(1e-2, 0)
    assert float(schedule(0)) == pytest.approx(1e-2)
    assert float(schedule(3)) == pytest.approx(5e-3)


def test_a_cool_down_falls_linearly_to_nothing_after_the_last_step():
    plain = WarmupInverseSqrt(3e-3, 4)
    cooled = WarmupInverseSqrt(3e-3, 4, cooldown_steps=5, total_steps=17)
    for done in range(17):
        share = min(1.0, (17 - done) / 5)
        assert float(cooled(done)) == pytest.approx(share * float(plain(done)), rel=1e-6)
    assert float(cooled(17)) == 0.0


def test_an_optimizer_keeps_it_through_its_config():
    optimizer = keras.optimizers.Adam(WarmupInverseSqrt(2e-3, 11))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    again.iterations.assign(6)
    optimizer.iterations.assign(6)
    assert float(again.learning_rate) == float(optimizer.learning_rate) == pytest.approx(2e-3 * 7 / 11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peak": 0}, "peak must be a positive"),
        ({"peak": 1e-3, "warmup_steps": -1}, "must not be negative"),
        ({"cooldown_steps": 3}, "cooldown_steps must lie in 0 .. total_steps"),
        ({"cooldown_steps": 3, "total_steps": 2}, "Got cooldown_steps=3, total_steps=2"),
    ],
)
def test_impossible_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        WarmupInverseSqrt(**options)
