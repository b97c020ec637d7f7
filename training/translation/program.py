"""The command that trains translation models; TensorFlow is loaded when it runs, and not for its help."""

from keras_attention.training.run.command_arguments import training_command
from keras_attention.training.translation.options import TranslationOptions


def _train(options):
    from keras_attention.training.translation.task import train

    return train(options)


command, main = training_command(
    TranslationOptions,
    _train,
    "Train a translation model with model.fit and write a run folder: model, tokenizer, config, history, metrics.",
)
