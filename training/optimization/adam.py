"""Adam with one operation for each variable."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("keras_attention")
class FusedAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam`, faster outside XLA: the same arguments, variables, checkpoints and numbers.

    Keras' update is eleven element-wise operations on tensors of a variable's size, each of which goes through memory;
    TensorFlow's own kernel does the same in one pass. With `amsgrad` and under a distribution strategy, which that
    kernel does not know, this is Keras' update, with one difference: where two replicas meet the same token, Keras
    squares the gradients of its embedding one by one, which is not Adam's.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014, https://arxiv.org/abs/1412.6980
    """

    def update_step(self, gradient, variable, learning_rate):
        # An embedding's gradient comes as rows: Adam moves all others as well, and rows of several replicas, which may
        # be the same ones, must be summed before they are squared.
        gradient = tf.convert_to_tensor(gradient)
        if self.amsgrad or tf.distribute.has_strategy():
            return super().update_step(gradient, variable, learning_rate)
        index, dtype = self._get_variable_index(variable), variable.dtype
        step = tf.cast(self.iterations + 1, dtype)
        return tf.raw_ops.ResourceApplyAdam(
            var=_resource(variable).handle,
            m=_resource(self._momentums[index]).handle,
            v=_resource(self._velocities[index]).handle,
            beta1_power=tf.constant(self.beta_1, dtype) ** step,
            beta2_power=tf.constant(self.beta_2, dtype) ** step,
            lr=tf.cast(learning_rate, dtype),
            beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )


def _resource(variable):
    """TensorFlow's variable of Keras'."""
    return variable.value if isinstance(variable, keras.Variable) else variable
