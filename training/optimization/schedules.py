"""Learning rates over the steps of a training run."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("keras_attention")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, then falls with the inverse square root of the step.

    `peak * min(n / warmup_steps, sqrt(warmup_steps / n))` at the n-th update, counted from 1: the first update already
    moves the weights, and the peak is reached at update `warmup_steps`. Without a cool-down the rate depends on the
    step alone, not on the length of the run, so a run can be made longer afterwards. With one it is also multiplied by
    a factor that falls linearly to 0 over the last updates, which lets a short run settle.

    Args:
        peak: the largest learning rate. `d_model ** -0.5 * warmup_steps ** -0.5` gives the paper's schedule.
        warmup_steps: updates until the peak; 0 starts at the peak.
        cooldown_steps: updates at the end over which the rate falls to 0; 0 for none.
        total_steps: updates of the whole run; needed by a cool-down.

    Call arguments:
        step: updates already made (Keras' `optimizer.iterations`), a scalar.

    Returns:
        float32 scalar.

    Raises:
        ValueError: `peak` is not positive, a number of steps is negative, or a cool-down does not fit into the run.

    Example:
        >>> schedule = WarmupInverseSqrt(peak=1e-3, warmup_steps=4)
        >>> [round(float(schedule(step)), 6) for step in (0, 3, 15)]
        [0.00025, 0.001, 0.0005]

    Reference:
        Vaswani et al., 2017, Attention Is All You Need, section 5.3, https://arxiv.org/abs/1706.03762; the cool-down:
        Zhai et al., 2022, Scaling Vision Transformers, https://arxiv.org/abs/2106.04560.
    """

    def __init__(self, peak=1e-3, warmup_steps=4000, cooldown_steps=0, total_steps=None):
        super().__init__()
        if not peak > 0:
            raise ValueError(f"peak must be a positive learning rate. Got {peak}; 0.001 is a usual value.")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative. Got {warmup_steps}; 0 means no warm-up.")
        if cooldown_steps < 0 or (cooldown_steps and (total_steps is None or cooldown_steps > total_steps)):
            raise ValueError(
                f"cooldown_steps must lie in 0 .. total_steps. Got cooldown_steps={cooldown_steps}, "
                f"total_steps={total_steps}."
            )
        self.cooldown_steps = int(cooldown_steps)
        self.total_steps = total_steps
        self.peak = float(peak)
        self.warmup_steps = int(warmup_steps)

    def __call__(self, step):
        update = tf.cast(step, tf.float32) + 1.0
        warmup = float(max(self.warmup_steps, 1))
        rate = self.peak * tf.minimum(update / warmup, tf.sqrt(warmup / update))
        if self.cooldown_steps:
            left = float(self.total_steps + 1) - update  # the last update still moves the weights
            rate *= tf.clip_by_value(left / self.cooldown_steps, 0.0, 1.0)
        return rate

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "cooldown_steps": self.cooldown_steps,
            "total_steps": self.total_steps,
        }
