"""Gradient checkpointing: a part of a model is computed again for its gradient, and keeps nothing in between."""

import keras
import tensorflow as tf

# Keras has no public name for the scope in which variables are read in half precision.
from keras.src.backend.common.variables import AutocastScope, get_autocast_scope


def checkpointed(layer, function, *inputs):
    """`function(*inputs)`, of which only the inputs are kept for the gradient; the rest is computed once more there.

    The result and the gradients are those of the plain call. Training then needs the memory of one part at a time and
    of the inputs of all, for the time of one more forward pass.

    `tf.recompute_grad` does not do here: it draws new dropout masks in the second pass, loses Keras' precision scope,
    and XLA merges its second pass with the first. This function

    - reads the layer's variables once and gives both passes those values, so that a variable that changes on the way
      (a dropout's seed) is the same for both, and changes once;
    - makes the second pass depend on the gradient that comes in, by control in TensorFlow's graphs and by a number in
      XLA's, so that neither can merge it with the first pass or run it early.

    Args:
        layer: the built layer whose variables `function` uses; its trainable ones get gradients.
        function: takes `inputs`, returns one tensor. It must not create variables. What it closes over gets no
            gradient.
        *inputs: nested structures. Floating tensors in them get gradients; all else is handed on as it is.

    Returns:
        The tensor that `function` returns.

    Reference: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, https://arxiv.org/abs/1604.06174
    """
    trainable = layer.trainable_variables
    ids = {id(variable) for variable in trainable}
    others = [variable for variable in layer.variables if id(variable) not in ids]
    precision = get_autocast_scope()
    precision = None if precision is None else precision.dtype
    with AutocastScope(None):  # a value rounded to half precision would be no variable's
        weights = [tf.convert_to_tensor(variable) for variable in trainable]
        others = [(variable, tf.convert_to_tensor(variable)) for variable in others]
    flat = tf.nest.flatten(inputs)
    places = [i for i, x in enumerate(flat) if tf.is_tensor(x) and x.dtype.is_floating]
    updates = []

    def run(tensors):
        arguments = list(flat)
        for place, x in zip(places, tensors):
            arguments[place] = x
        values = list(zip(trainable, tensors[len(places) :], strict=True)) + others
        with AutocastScope(precision), keras.StatelessScope(values) as scope:
            result = function(*tf.nest.pack_sequence_as(inputs, arguments))
        return result, scope

    @tf.custom_gradient
    def forward(*tensors):
        # No tape may follow the first pass: it would store what is in between.
        result, scope = run([tf.stop_gradient(x) for x in tensors])
        for variable, before in others:
            after = scope.get_current_value(variable)
            if after is not before:
                updates.append((variable, after))

        def gradient(upstream):
            upstream = tf.convert_to_tensor(upstream)  # the gradient of a gather comes as slices
            again = _once_known(upstream, tensors, len(places))
            with tf.GradientTape() as tape:
                tape.watch(again)
                result, _ = run(again)
            # A table's gradient comes as slices, which a function's gradient may not be everywhere.
            return [None if x is None else tf.convert_to_tensor(x) for x in tape.gradient(result, again, upstream)]

        return result, gradient

    result = forward(*(flat[place] for place in places), *weights)
    for variable, value in updates:
        variable.assign(value)
    return result


def _once_known(upstream, tensors, inputs):
    """Copies of the tensors that no compiler can make before `upstream` is known, the first `inputs` also in XLA."""
    if tf.executing_eagerly():
        return [tf.identity(x) for x in tensors]
    with tf.control_dependencies([upstream]):
        tensors = [tf.identity(x) for x in tensors]
    # XLA ignores control dependencies. One number is enough, and it is 0 whatever it is made of, except that a NaN
    # stays one, which would have spoiled the gradients anyway.
    number = tf.reduce_sum(tf.reshape(upstream, [-1])[:1])
    zero = tf.where(tf.math.is_nan(number), number, tf.zeros_like(number))
    return [x + tf.cast(zero, x.dtype) if i < inputs else x for i, x in enumerate(tensors)]
