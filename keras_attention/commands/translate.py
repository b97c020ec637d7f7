"""`keras-attention translate`: text in, translations out, from a run folder, a SavedModel or an ONNX folder."""

import sys
from typing import Annotated

import typer

BATCH = 64  # lines read from standard input before they are translated


def translate(
    model: Annotated[str, typer.Option(help="A run folder, a SavedModel or an ONNX folder.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; standard input, line by line, when none.")] = None,
    beams: Annotated[
        int | None, typer.Option(help="Beams of the search; 1 is greedy. A SavedModel keeps its own.", min=1)
    ] = None,
):
    """Translate texts, one line each."""
    from keras_attention.inference.translator import Translator

    translator = Translator.load(model)
    options = {} if beams is None else {"beams": beams}
    if text:
        _print(translator(text, **options))
        return
    lines = []
    for line in _standard_input():
        lines.append(line)
        if len(lines) == BATCH:
            _print(translator(lines, **options))
            lines = []
    if lines:
        _print(translator(lines, **options))


def _standard_input():
    # Undecodable bytes become replacement marks: one bad line must not end a stream.
    for raw in sys.stdin.buffer:
        yield raw.decode("utf-8", errors="replace").rstrip("\r\n")


def _print(texts):
    for text in texts:
        print(text)
    sys.stdout.flush()
