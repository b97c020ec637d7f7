"""Learning rates over the steps of a training run."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("keras_attention")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, then falls with the inverse square root of the step.

    `peak * min(n / warmup_steps, sqrt(warmup_steps / n))` at the n-th update, counted from 1: the first update already
    moves the weights, and the peak is reached at update `warmup_steps`. The rate depends on the step alone, not on the
    length of the run, so a run can be made longer afterwards.

    Args:
        peak: the largest learning rate. `d_model ** -0.5 * warmup_steps ** -0.5` gives the paper's schedule.
        warmup_steps: updates until the peak; 0 starts at the peak.

    Call arguments:
        step: updates already made (Keras' `optimizer.iterations`), a scalar.

    Returns:
        float32 scalar.

    Raises:
        ValueError: `peak` is not positive, or `warmup_steps` is negative.

    Example:
        >>> schedule = WarmupInverseSqrt(peak=1e-3, warmup_steps=4)
        >>> [round(float(schedule(step)), 6) for step in (0, 3, 15)]
        [0.00025, 0.001, 0.0005]

    Reference:
        Vaswani et al., 2017, Attention Is All You Need, section 5.3, https://arxiv.org/abs/1706.03762.
    """

    def __init__(self, peak=1e-3, warmup_steps=4000):
        super().__init__()
        if not peak > 0:
            raise ValueError(f"peak must be a positive learning rate. Got {peak}; 0.001 is a usual value.")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative. Got {warmup_steps}; 0 means no warm-up.")
        self.peak = float(peak)
        self.warmup_steps = int(warmup_steps)

    def __call__(self, step):
        update = tf.cast(step, tf.float32) + 1.0
        warmup = float(max(self.warmup_steps, 1))
        return self.peak * tf.minimum(update / warmup, tf.sqrt(warmup / update))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}
