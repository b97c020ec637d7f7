"""Training CLIP on captioned images."""

from keras_attention.lazy_names import lazy_names

# The task loads TensorFlow, which the options of a command can do without.
_TASK = "keras_attention.training.clip.task"
_PROGRAM = "keras_attention.training.clip.program"
__getattr__, __dir__ = lazy_names(__name__, train=_TASK, command=_PROGRAM, main=_PROGRAM)
