"""`keras-attention generate`: a language model, of a run folder or an export, goes on with a text."""

import os
import sys
from typing import Annotated

import typer


def generate(
    model: Annotated[
        str,
        typer.Option(
            help="A run folder of keras-attention train lm, or a SavedModel or an ONNX folder exported from one. A "
            "SavedModel is code: load only what you trust."
        ),
    ],
    prompt: Annotated[str, typer.Argument(help="The text to go on with.")] = "",
    tokens: Annotated[int, typer.Option(help="Bytes to generate.", min=1)] = 200,
):
    """Print a prompt and its most probable continuation, byte by byte."""
    from keras_attention.inference.text_generator import TextGenerator

    answer = TextGenerator.load(model)(os.fsencode(prompt), max_new_tokens=tokens)
    # Bytes: a text may end in the middle of a letter.
    sys.stdout.buffer.write(os.fsencode(prompt) + answer + b"\n")
