"""A run of AdamW along a cosine, whose model is judged and kept as the moving average of its weights."""

import keras

from keras_attention.training.optimization.compiling import with_loss_scaling
from keras_attention.training.optimization.cosine import CosineOverBudget
from keras_attention.training.optimization.weight_averages import moving_average
from keras_attention.training.optimization.weight_decay import without_decay
from keras_attention.training.run.best_weights import BestWeights
from keras_attention.training.run.model_run import ModelRun


class AveragedRun(ModelRun):
    """What models of images share beside `ModelRun`.

    A subclass sets `batches` in `load_data`: its length is that of an epoch, and `dataset(epoch, step)` the batches
    from there on. Options have `weight_decay`, `ema`, `warmup` and `precision`.
    """

    @property
    def learning_rate(self):
        """The largest rate of the schedule."""
        return self.options.learning_rate

    def make_optimizer(self, model):
        """AdamW for a built model, scaling the loss where the precision asks for it."""
        optimizer = keras.optimizers.AdamW(
            self.learning_rate,
            weight_decay=self.options.weight_decay,
            beta_2=0.98,  # gradients of a few hundred steps are all that a short run has to average
            global_clipnorm=1.0,
            use_ema=self.options.ema > 0,
            ema_momentum=self.options.ema or 0.99,
        )
        optimizer.exclude_from_weight_decay(var_list=without_decay(model))
        return with_loss_scaling(optimizer, self.options.precision, model)

    def steps_per_epoch(self):
        return len(self.batches)

    def dataset(self, epoch, step):
        return self.batches.dataset(epoch, step)

    def training_callbacks(self):
        return [
            CosineOverBudget(
                self.learning_rate, self.options.warmup, self.budget, self.progress, self.steps_per_epoch()
            )
        ]

    def choose_weights(self):
        if self.progress.best is None:
            # Without validation the last weights are kept; after a resumed `fit` that had nothing to do, too.
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        super().choose_weights()


class AveragedValidation:
    """Numbers of the validation data with the averaged weights, and the best of these on disk.

    Args:
        model: compiled model.
        best_path: the file for the best model's variables.
        measure: function that returns the numbers as a dict, "loss" among them; None where there are no data.
        judged_by: which of them says what is better, the larger; of equals the lower loss.
        every: validate after every so many epochs, and when training ends.
    """

    def __init__(self, model, best_path, measure, judged_by, every=1):
        self.model, self.measure, self.judged_by, self.every = model, measure, f"val_{judged_by}", every
        self.best = BestWeights(model, best_path)

    def __call__(self, record, last, progress):
        """Add `val_...` values to the epoch's record, and replace `progress.best` by it where it is better."""
        if self.measure is None or not (last or record["epoch"] % self.every == 0):
            return
        with moving_average(self.model):
            for name, value in self.measure().items():
                record[f"val_{name}"] = value
            self.best.offer(record, progress, self._rank)

    def restore_best(self, best):
        """Give the model the weights of the best validation; False, with a printed line, where they are lost."""
        return self.best.restore(best)

    def _rank(self, record):
        loss = record["val_loss"]
        return None if loss != loss else (record[self.judged_by], -loss)  # NaN cannot be compared
