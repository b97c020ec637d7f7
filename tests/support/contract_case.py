"""What one case of the batteries of layers and models says, and how its layer is made and called."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

BATCH = 3
# All different: a swapped axis cannot pass.
SIZES = {"T": 5, "S": 7, "H": 6, "W": 8}


def no_mask(inputs, masks):
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A layer or model under test.

    Attributes:
        cls: its class.
        options: constructor arguments, every one off its default, or a function from a dtype policy to them where they
            hold other models. All tests run with these.
        inputs: name -> shape behind the batch. A letter of `SIZES` is a length that may be unknown, 1 or `least`.
        also: further constructor arguments, for those that cannot stand beside `options`; each is a change of it.
        around: how the layer is used, from (layer, dtype), where it takes no tensors itself.
        as_dict: whether the inputs come as one dict, as models of several take them.
        ids: name -> number of ids, for inputs of integers.
        pad_id: id that is padding in inputs of integers.
        carried: the implicit mask that the output has, from (inputs, implicit masks by name); None for no mask.
        masked: inputs whose implicit mask is honoured: what stands in their masked positions reaches no other.
        padded: inputs of integers that may be padded behind: that changes no output of a real position.
        output_dtype: "compute" or what the output has under every policy.
        least: the smallest length.
        idle: endings of paths of weights that no gradient reaches (the softmax does not see the key's bias).
        half_tolerance: relative to the largest output, in float16 and bfloat16.
        name: tells cases of one class apart, without spaces.
    """

    cls: type
    options: dict | Callable
    inputs: dict
    also: tuple = ()
    around: Callable = None
    as_dict: bool = False
    ids: dict = dataclasses.field(default_factory=dict)
    pad_id: int | None = None
    carried: Callable = no_mask
    masked: tuple = ()
    padded: tuple = ()
    output_dtype: str = "compute"
    least: int = 0
    idle: tuple = ()
    half_tolerance: tuple = (1e-2, 6e-2)
    name: str = ""

    def __str__(self):
        return self.name or self.cls.__name__

    @property
    def lengths(self):
        return {size for shape in self.inputs.values() for size in shape if isinstance(size, str)}

    def arguments(self, dtype=None, **changes):
        options = self.options(dtype) if callable(self.options) else self.options
        return {**options, **changes}

    def make(self, dtype="float32", **changes):
        """The layer as it is used, not built."""
        layer = self.cls(**self.arguments(dtype, **changes), dtype=dtype)
        return layer if self.around is None else self.around(layer, dtype)

    def used(self, layer):
        """A layer made by the test, as it is used."""
        return layer if self.around is None else self.around(layer, layer.dtype_policy)

    def built(self, dtype="float32", seed=1, **changes):
        """The same, built from shapes, with random weights."""
        layer = self.make(dtype, **changes)
        build(self, layer)
        randomize(layer, seed)
        return layer

    def shapes(self, batch=None, **lengths):
        """name -> shape; unknown where `lengths` does not say."""
        return {
            name: (batch, *(lengths.get(size) if isinstance(size, str) else size for size in shape))
            for name, shape in self.inputs.items()
        }

    def input_dtype(self, name, dtype="float32"):
        return "int32" if name in self.ids else keras.DTypePolicy(dtype).compute_dtype

    def random(self, rng, batch=BATCH, dtype="float32", **lengths):
        """name -> random input."""
        out = {}
        for name, shape in self.shapes(batch, **{**SIZES, **lengths}).items():
            if name in self.ids:
                values = rng.integers(0, self.ids[name], shape)
                if self.pad_id is not None:
                    # Real tokens only, where the test does not pad.
                    values = np.where(values == self.pad_id, (self.pad_id + 1) % self.ids[name], values)
                out[name] = tf.constant(values, tf.int32)
            else:
                out[name] = tf.cast(rng.normal(size=shape), self.input_dtype(name, dtype))
        return out

    def call(self, layer, inputs, **options):
        return layer(dict(inputs), **options) if self.as_dict else layer(*inputs.values(), **options)

    def symbols(self, batch=None, dtype="float32", **lengths):
        return {
            name: keras.Input(shape[1:], batch_size=batch, dtype=self.input_dtype(name, dtype), name=f"{self}.{name}")
            for name, shape in self.shapes(batch, **lengths).items()
        }

    def specs(self, dtype="float32"):
        return {name: tf.TensorSpec(s, self.input_dtype(name, dtype)) for name, s in self.shapes().items()}

    def functional(self, layer=None, batch=None, **lengths):
        """A functional model of the layer, and the layer."""
        layer = self.make() if layer is None else layer
        inputs = self.symbols(batch, **lengths)
        return keras.Model(list(inputs.values()), self.call(layer, inputs)), layer

    def run(self, model, inputs):
        return model([inputs[name] for name in self.inputs])


def build(case, layer):
    shapes = case.shapes()
    if case.as_dict:
        layer.build(shapes)
    else:
        layer.build(*shapes.values())


def randomize(layer, seed=1, dtype=None):
    """Weights all different, the same for one seed whatever their precision; exact in `dtype` where one is given."""
    rng = np.random.default_rng(seed)
    for w in layer.trainable_variables:
        value = tf.constant(rng.normal(0.2, 0.3, w.shape), dtype or w.dtype)
        w.assign(tf.cast(value, w.dtype))
    return layer


def parts(outputs):
    """The outputs as a list of float64 arrays."""
    return [np.asarray(tf.cast(part, tf.float64)) for part in tf.nest.flatten(outputs)]


def total(outputs):
    """A number that depends on every output, in at least float32."""
    out = 0.0
    for i, part in enumerate(tf.nest.flatten(outputs)):
        part = part if part.dtype == tf.float64 else tf.cast(part, tf.float32)
        factors = tf.constant(np.random.default_rng(i).normal(size=part.shape[-1]), part.dtype)
        # Not reduce_mean, which is NaN for no numbers.
        out += tf.reduce_sum(tf.sin(part * factors)) / tf.cast(tf.maximum(tf.size(part), 1), part.dtype)
    return out
