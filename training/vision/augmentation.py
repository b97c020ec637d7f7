"""Changes to training images that leave their class, or their mixture of classes, known: Keras' layers by name."""

import keras
import tensorflow as tf

from keras_attention.training.vision.augmentation_names import NAMES

SHIFT, ROTATION, ZOOM, MARGIN = 0.1, 0.03, 0.1, 0.125
# Of the images in a batch, the share that is shifted, rotated and zoomed. The others keep their sharpness: a model that
# has seen nothing but interpolated pixels does worse on pixels as they are.
MOVED = 0.5
RANDAUGMENT = {"num_ops": 2, "factor": 0.1}
MIXUP_ALPHA, CUTMIX_ALPHA = 0.2, 1.0
# A layer draws fewer random numbers than this for one batch, so that no two batches share one.
_DRAWS = 1024


class Augmentation:
    """A chain of Keras' image layers whose random numbers depend on the seed and the number of the batch alone.

    shift, rotate, zoom: half of the images, each on its own: `RandomTranslation` by whole pixels up to 10 % of the
    side (at least one), `RandomRotation` by up to 3 % of a turn (11 degrees), `RandomZoom` by up to 10 %. crop:
    `RandomCrop` of the image with a margin of 1/8 added, the same place for a whole batch. flip: `RandomFlip`, left to
    right. randaugment: `RandAugment` (Cubuk et al., 2019, https://arxiv.org/abs/1909.13719), two operations for a whole
    batch. mixup, cutmix: `MixUp` (Zhang et al., 2017, https://arxiv.org/abs/1710.09412), `CutMix` (Yun et al., 2019,
    https://arxiv.org/abs/1905.04899); with both, each batch takes one of them by lot.

    The layers' random numbers live in variables that go on from call to call; these are set anew for each batch, so
    that a resumed run sees the images that an undisturbed one sees.

    Args:
        names: names from `NAMES`.
        height, width, channels: of the images.
        fill: what stands where an image does not reach after it was moved, a pixel's value from 0 to 255.
        seed: a whole number.

    Call arguments:
        pixels: float32 [B, H, W, C] from 0 to 255.
        labels: float32 [B, N], the shares of the classes.
        number: scalar, the batch's number.

    Returns:
        Pixels and labels of the same shapes.
    """

    def __init__(self, names, *, height, width, channels, fill=0.0, seed=0):
        self.names = tuple(names)
        self.channels = channels
        self.margins = [max(1, round(MARGIN * size)) for size in (height, width)]
        self.fill = float(fill)
        moved = {"fill_mode": "constant", "fill_value": self.fill}
        shifts = [max(SHIFT, 1 / size) for size in (height, width)]
        makers = {
            "shift": lambda **s: keras.layers.RandomTranslation(*shifts, interpolation="nearest", **moved, **s),
            "rotate": lambda **s: keras.layers.RandomRotation(ROTATION, **moved, **s),
            "zoom": lambda **s: keras.layers.RandomZoom(ZOOM, **moved, **s),
            "crop": lambda **s: keras.layers.RandomCrop(height, width, **s),
            "flip": lambda **s: keras.layers.RandomFlip("horizontal", **s),
            "randaugment": lambda **s: keras.layers.RandAugment(**RANDAUGMENT, **s),
            "mixup": lambda **s: keras.layers.MixUp(MIXUP_ALPHA, **s),
            "cutmix": lambda **s: keras.layers.CutMix(CUTMIX_ALPHA, **s),
        }
        # In float32 whatever the precision of the model: half precision cannot tell 255 levels of a sum apart.
        self.layers = {name: makers[name](seed=1000 * seed + NAMES.index(name), dtype="float32") for name in self.names}
        self.seed = seed

    def __call__(self, pixels, labels, number):
        if not self.names:
            return pixels, labels
        self._set_random_numbers(number)
        shape = pixels.shape
        moved = pixels
        for name in ("shift", "rotate", "zoom"):
            if name in self.layers:
                moved = self.layers[name](moved, training=True)
        pixels = tf.where(self._lots(number, 0, [shape[0], 1, 1, 1]) < MOVED, moved, pixels)
        if "crop" in self.layers:
            (top, left), none = self.margins, [0, 0]
            pixels = tf.pad(pixels, [none, [top, top], [left, left], none], constant_values=self.fill)
        for name in ("crop", "flip"):
            if name in self.layers:
                pixels = self.layers[name](pixels, training=True)
        if "randaugment" in self.layers:
            # Its operations on colours need three channels, which they treat alike.
            rgb = tf.repeat(pixels, 3 // self.channels, axis=-1)
            pixels = self.layers["randaugment"](rgb, training=True)[..., : self.channels]
        pixels, labels = self._mixed(tf.ensure_shape(pixels, shape), labels, number)
        return tf.ensure_shape(pixels, shape), labels

    def _mixed(self, pixels, labels, number):
        mixers = [self.layers[name] for name in ("mixup", "cutmix") if name in self.layers]
        if not mixers:
            return pixels, labels

        def mix(layer):
            def mixed():
                result = layer({"images": pixels, "labels": labels}, training=True)
                return tf.ensure_shape(result["images"], pixels.shape), tf.ensure_shape(result["labels"], labels.shape)

            return mixed

        if len(mixers) == 1:
            return mix(mixers[0])()
        return tf.cond(self._lots(number, 1, []) < 0.5, mix(mixers[0]), mix(mixers[1]))

    def _lots(self, number, use, shape):
        """Uniform numbers from 0 to 1, of a batch and one of two uses."""
        return tf.random.stateless_uniform(shape, [self.seed, 2 * tf.cast(number, tf.int32) + use])

    def _set_random_numbers(self, number):
        for layer in self.layers.values():
            for inner in layer._flatten_layers():
                generator = getattr(inner, "generator", None)
                if generator is not None:
                    state = [tf.constant(inner.seed, tf.int64), tf.cast(number, tf.int64) * _DRAWS]
                    generator.state.assign(tf.cast(tf.stack(state), generator.state.dtype))
