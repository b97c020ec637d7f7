"""What the models of images share: their input, their head and Keras' contract."""

import keras
import tensorflow as tf

from keras_attention.models.configured import ConfiguredModel
from keras_attention.ops.basics import checks
from keras_attention.ops.vision import patch_grids


class ImageModel(ConfiguredModel):
    """Base of the models of images. A subclass gives `features`, `feature_width` and `build_parts`."""

    def __init__(self, image_size, channels, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.image_size = patch_grids.pair("image_size", image_size)
        self.channels = checks.positive_int("channels", channels)
        self.num_classes = num_classes
        self.head = None
        if self.num_classes is not None:
            checks.positive_int("num_classes", self.num_classes)
            self.head = keras.layers.Dense(self.num_classes, dtype=self.dtype_policy, name="head")

    @property
    def feature_width(self):
        """Width of the pooled features."""
        raise NotImplementedError

    def build_parts(self):
        """Builds everything before the head."""
        raise NotImplementedError

    def features(self, images, training=False):
        """Tokens [B, N, d_model] after the last normalization, of images [B, H, W, channels]."""
        raise NotImplementedError

    def pool(self, tokens):
        """Pooled features [B, feature_width] of what `features` returned."""
        raise NotImplementedError

    def build(self, input_shape=None):
        self.build_parts()
        if self.head is not None:
            self.head.build((None, self.feature_width))

    def call(self, images, training=False):
        pooled = self.pool(self.features(images, training=training))
        return pooled if self.head is None else tf.cast(self.head(pooled), tf.float32)

    def prepared(self, pixels):
        """The images, checked, in the compute dtype."""
        patch_grids.check(pixels, self.channels)
        return tf.cast(pixels, self.compute_dtype)

    # --- Keras' contract ------------------------------------------------------------------------------------------

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.feature_width if self.head is None else self.num_classes)

    def compute_output_spec(self, inputs, training=False):
        # Logits are float32 under every policy.
        dtype = self.compute_dtype if self.head is None else "float32"
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=dtype)
