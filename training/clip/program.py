"""The command that trains CLIP; TensorFlow is loaded when it runs, and not for its help."""

from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.run.command_arguments import training_command


def _train(options):
    from keras_attention.training.clip.task import train

    return train(options)


command, main = training_command(
    ClipOptions,
    _train,
    "Train CLIP on captioned images with model.fit and write a run folder: model, tokenizer, config, history, metrics.",
)
