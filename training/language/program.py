"""The command that trains language models; TensorFlow is loaded when it runs, and not for its help."""

from keras_attention.training.language.options import LanguageOptions
from keras_attention.training.run.command_arguments import training_command


def _train(options):
    from keras_attention.training.language.task import train

    return train(options)


command, main = training_command(
    LanguageOptions,
    _train,
    "Train a language model on the bytes of files with model.fit and write a run folder: model, config, history, "
    "metrics.",
)
