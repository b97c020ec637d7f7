"""`keras-attention translate`: text in, translations out, from a run folder, a SavedModel or an ONNX folder."""

import sys
from typing import Annotated

import typer

BATCH = 64  # the most lines of standard input that are translated together
_CHUNK = 65536


def translate(
    model: Annotated[
        str,
        typer.Option(
            help="A run folder, a SavedModel or an ONNX folder. A SavedModel is code: load only what you trust."
        ),
    ],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; standard input, line by line, when none.")] = None,
    beams: Annotated[
        int | None, typer.Option(help="Beams of the search; 1 is greedy. A SavedModel keeps its own.", min=1)
    ] = None,
):
    """Translate texts, one line each.

    A text that is longer than the model reads, and a line that is no UTF-8, are translated as far as they go, and named
    in a line on standard error.
    """
    from keras_attention.inference.translator import Translator

    translator = Translator.load(model)
    first = 1
    for lines in [text] if text else _standard_input(sys.stdin.buffer):
        for place, line in enumerate(lines, first):
            if "\ufffd" in line and not text:
                _note(f"line {place} is not UTF-8: what cannot be read became U+FFFD")
        for translation in translator(lines, **({} if beams is None else {"beams": beams})):
            print(translation)
        sys.stdout.flush()
        for index, tokens, kept in translator.truncated:
            what = "text" if text else "line"
            _note(f"{what} {first + index} has {tokens} tokens, of which the model reads {kept}: its end is left out")
        first += len(lines)


def _note(message):
    print(f"keras-attention: {message}", file=sys.stderr)


def _standard_input(stream):
    """Lists of at most `BATCH` lines: as many as are there, so that a line at a time gets its answer at once."""
    rest = b""
    while chunk := stream.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from _batches(lines)
    yield from _batches([rest] if rest else [])


def _batches(lines):
    # Undecodable bytes become replacement marks: one bad line must not end a stream.
    texts = [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines]
    for start in range(0, len(texts), BATCH):
        yield texts[start : start + BATCH]
