"""AdamW that keeps a moving average of the weights."""

import keras
from keras import ops

from keras_attention.training.optimization.compiling import with_loss_scaling
from keras_attention.training.optimization.weight_decay import without_decay


class AveragedAdamW(keras.optimizers.AdamW):
    """AdamW whose moving average of the weights forgets where training began.

    Keras' own average starts as the weights after the first step, which are as good as random, and keeps
    `ema_momentum ** n` of them: after 48 steps at 0.99 that is 62 %. Here update n, counted from 0, has the momentum
    `min(ema_momentum, (1 + n) / (10 + n))`: early on the average is that of about the last tenth of the updates. It
    depends on the optimizer's count of updates alone, so that there are no further variables, and a run that is resumed
    goes on exactly. With `use_ema=False` this is AdamW.

    Args:
        As `keras.optimizers.AdamW`; `ema_momentum` is the largest momentum.

    Reference:
        Polyak and Juditsky, 1992, https://doi.org/10.1137/0330046; the rising momentum is that of
        `tf.train.ExponentialMovingAverage(num_updates=)`.
    """

    @property
    def ema_momentum(self):
        """The momentum of the running update, a float32 tensor."""
        updates = ops.cast(self.iterations, "float32")
        return ops.minimum(self._largest_momentum, (1.0 + updates) / (10.0 + updates))

    @ema_momentum.setter
    def ema_momentum(self, value):
        self._largest_momentum = value

    def get_config(self):
        return {**super().get_config(), "ema_momentum": self._largest_momentum}


def averaged_adamw(model, options):
    """`AveragedAdamW` for a built model, scaling the loss where the precision asks for it.

    Args:
        options: `weight_decay`, `ema` (largest momentum of the average; 0: none) and `precision`. The learning rate is
            set from outside, before each step.
    """
    optimizer = AveragedAdamW(
        weight_decay=options.weight_decay,
        beta_2=0.98,  # gradients of a few hundred steps are all that a short run has to average
        global_clipnorm=1.0,
        use_ema=options.ema > 0,
        ema_momentum=options.ema or 0.99,
    )
    optimizer.exclude_from_weight_decay(var_list=without_decay(model))
    optimizer = with_loss_scaling(optimizer, options.precision, model)
    # Before anything is restored, its variables must exist.
    optimizer.build(model.trainable_variables)
    return optimizer
