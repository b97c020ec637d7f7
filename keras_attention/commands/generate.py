"""`keras-attention generate`: a language model goes on with a text."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_attention.errors import UsageError


def generate(
    model: Annotated[Path, typer.Option(help="A run folder of keras-attention train lm.")],
    prompt: Annotated[str, typer.Argument(help="The text to go on with.")] = "",
    tokens: Annotated[int, typer.Option(help="Bytes to generate.", min=1)] = 200,
):
    """Print a prompt and its most probable continuation, byte by byte."""
    from keras_attention.generation import continue_greedily
    from keras_attention.text import ByteTokenizer
    from keras_attention.training.run.run_folder import RunFolder

    folder = RunFolder(model)
    if folder.read_config().get("tokenizer", {}).get("kind") != "bytes":
        raise UsageError(f"{model} holds no language model on bytes. Give a run folder of keras-attention train lm.")
    language_model, tokenizer = folder.load_model(), ByteTokenizer()
    try:
        result = continue_greedily(
            language_model, tokenizer.encode_batch([prompt]), max_new_tokens=tokens, forbidden=range(tokenizer.offset)
        )
    except ValueError as error:  # learned positions have an end
        raise UsageError(" ".join(str(error).split())) from error
    # Bytes: a text may end in the middle of a letter.
    sys.stdout.buffer.write(prompt.encode() + tokenizer.decode(result.tokens[0]) + b"\n")
    sys.stdout.flush()
