"""The command that trains classifiers of images; TensorFlow is loaded when it runs, and not for its help."""

from keras_attention.training.run.command_arguments import training_command
from keras_attention.training.vision.options import VisionOptions


def _train(options):
    from keras_attention.training.vision.task import train

    return train(options)


command, main = training_command(
    VisionOptions,
    _train,
    "Train a classifier of images with model.fit and write a run folder: model, config, history, metrics, pictures.",
)
