"""The progress bar of `model.fit` for epochs that begin or end in the middle."""

import keras


class EpochProgress(keras.callbacks.ProgbarLogger):
    """Keras' progress bar for epochs that may begin, or end, in the middle.

    Args:
        progress: `Progress` of the run.
        steps_per_epoch: batches in a whole epoch.
        epochs: number of epochs of the run, or None where other limits end it.
    """

    def __init__(self, progress, steps_per_epoch, epochs):
        super().__init__()
        self._progress = progress
        self._steps_per_epoch = steps_per_epoch
        self._shown_epochs = epochs
        self._done_before = 0

    def set_params(self, params):
        super().set_params(params)
        self.target = self._steps_per_epoch
        self.epochs = 1  # the heading is printed here, without the bound that fit was given

    def on_epoch_begin(self, epoch, logs=None):
        if self.verbose:
            print(f"Epoch {epoch + 1}" + (f"/{self._shown_epochs}" if self._shown_epochs else ""), flush=True)
        self._done_before = self._progress.step
        self.target = self._steps_per_epoch
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch + self._done_before, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.target = self.seen  # an epoch that was ended early is not shown as whole
        super().on_epoch_end(epoch, logs)
