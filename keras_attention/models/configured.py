"""Keras' contract for models whose config says every size."""

import keras

from keras_attention.models import weights_files


class ConfiguredModel(keras.Model):
    """Base of models that build without an input; a subclass keeps its arguments in `_config` and gives `build()`."""

    # Attributes that hold lists of blocks, whose number in files of weights is compared.
    block_lists = ("blocks",)

    def get_config(self):
        return {**super().get_config(), **self._config}

    def get_build_config(self):
        # Every size is in the config; an empty dict would tell Keras that there is nothing to build before loading.
        return {"input_shape": None}

    def build_from_config(self, config):
        self.build()

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """As Keras' own from `.weights.h5` and `.keras` files, but other depths are refused unless `skip_mismatch`."""
        weights_files.check_ending(filepath)
        if not skip_mismatch:
            self.check_blocks(filepath)
        return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)

    def check_blocks(self, filepath):
        """Raises where a file of weights holds other numbers of blocks."""
        weights_files.check_blocks(filepath, self, *self.block_lists)
