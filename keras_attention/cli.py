"""The `keras-attention` command: thin, one file per command in `keras_attention.commands`."""

import sys
from typing import Annotated

import typer

import keras_attention
from keras_attention.console import plain_app, run_app


def build_app():
    """The typer application with all commands."""
    from keras_attention.commands import classify, export, generate, train, translate

    app = plain_app(
        name="keras-attention",
        help="Train attention models, export them for TensorFlow Serving and ONNX Runtime, and use them.",
        no_args_is_help=True,
        callback=_about,
    )
    app.add_typer(train.app, name="train")
    app.add_typer(export.app, name="export")
    app.command("translate")(translate.translate)
    app.command("generate")(generate.generate)
    app.command("classify")(classify.classify)
    return app


def _print_version(wanted: bool):
    if wanted:
        print(f"keras-attention {keras_attention.__version__}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
):
    pass


def main(argv=None):
    """Runs one command and ends the process: 0, or 2 with one line on standard error for bad input, 130 for Ctrl-C."""
    run_app(build_app, argv, "keras-attention")
    sys.exit(0)


if __name__ == "__main__":
    main()
