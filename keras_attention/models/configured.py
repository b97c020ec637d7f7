"""Keras' contract for models whose config says every size."""

import functools

import keras

from keras_attention.models import weights_files
from keras_attention.recorded import Recorded


class ConfiguredModel(Recorded, keras.Model):
    """Base of models that build without an input; a subclass gives `build()`."""

    # Attributes that hold lists of blocks, whose number in files of weights is compared.
    block_lists = ("blocks",)

    def get_build_config(self):
        # Every size is in the config; an empty dict would tell Keras that there is nothing to build before loading.
        return {"input_shape": None}

    def build_from_config(self, config):
        self.build()

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """As Keras' own from `.weights.h5` and `.keras` files, but other depths are refused unless `skip_mismatch`."""
        weights_files.check_ending(filepath)
        if not skip_mismatch:
            weights_files.check_blocks(filepath, self)
        return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)


def built_first(method):
    """Decorator of a model's public methods that do not go through `__call__`, which would build the model.

    Called before the first call, such a method would build the parts one by one, each under a name of its own, and the
    model could not be built any more.
    """

    @functools.wraps(method)
    def building(self, *args, **kwargs):
        if not self.built:
            self.build()
        return method(self, *args, **kwargs)

    return building


def block_seed(seed, index):
    """The seed of the block number `index`, from 0: its parts take the ten seeds from its own on. None without one."""
    return None if seed is None else seed + 10 * (index + 1)
