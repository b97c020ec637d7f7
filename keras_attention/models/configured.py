"""Keras' contract for models whose config says every size."""

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
        """As Keras' own from `.weights.h5` and `.keras` files; builds the model where it is not built yet.

        Other numbers of blocks than the model's are refused unless `skip_mismatch`, which loads what fits.
        """
        weights_files.check_ending(filepath)
        if not skip_mismatch:
            weights_files.check_blocks(filepath, self)
        if not self.built:
            self.build()
        return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)


def block_seed(seed, index):
    """The seed of the block number `index`, from 0: its parts take the ten seeds from its own on. None without one."""
    return None if seed is None else seed + 10 * (index + 1)
