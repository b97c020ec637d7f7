"""A learning rate that rises, and then falls along a cosine to reach 0 where the run's budget ends."""

import math

import keras


def warmup_cosine(peak, step, warmup_steps, share):
    """The learning rate of one update.

    Args:
        peak: the largest rate.
        step: updates already made.
        warmup_steps: updates over which the rate rises linearly; 0 for none.
        share: how much of the run's budget is used, from 0 to 1.

    Example:
        >>> [warmup_cosine(1e-3, step, 10, step / 100) for step in (4, 50)]
        [0.0004980..., 0.0005]

    Reference:
        Loshchilov and Hutter, 2016, SGDR, https://arxiv.org/abs/1608.03983. As a function of the budget, whatever it
        is counted in: Li et al., 2019, Budgeted Training, https://arxiv.org/abs/1905.04753.
    """
    rise = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return peak * rise * 0.5 * (1.0 + math.cos(math.pi * share))


class CosineOverBudget(keras.callbacks.Callback):
    """Sets the optimizer's learning rate before each step by `warmup_cosine`.

    With limits of epochs or steps the rate depends on the step alone. A limit of minutes is met in time, however fast
    the machine is; the rates are then not the same in every run.

    Args:
        peak, warmup_steps: see `warmup_cosine`.
        budget: `Budget`.
        progress: `Progress` of the run, which another callback keeps.
        steps_per_epoch: batches of a whole epoch.
    """

    def __init__(self, peak, warmup_steps, budget, progress, steps_per_epoch):
        super().__init__()
        self.peak, self.warmup_steps = peak, warmup_steps
        self.budget, self.progress, self.steps_per_epoch = budget, progress, steps_per_epoch

    def on_train_batch_begin(self, batch, logs=None):
        share = self.budget.share(self.progress, self.steps_per_epoch)
        self.model.optimizer.learning_rate = warmup_cosine(self.peak, self.progress.steps, self.warmup_steps, share)
