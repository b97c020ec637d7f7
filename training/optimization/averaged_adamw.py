"""AdamW that keeps a moving average of the weights."""

import keras

from keras_attention.training.optimization.compiling import with_loss_scaling
from keras_attention.training.optimization.weight_decay import without_decay


def averaged_adamw(model, options):
    """AdamW for a built model, with a moving average of its weights, scaling the loss where the precision asks for it.

    Args:
        options: `weight_decay`, `ema` (momentum of the average; 0: none) and `precision`. The learning rate is
            set from outside, before each step.
    """
    optimizer = keras.optimizers.AdamW(
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
