"""`keras-attention export saved-model|onnx`: from a run folder or a .keras file to what servers and runtimes load."""

from pathlib import Path
from typing import Annotated

import typer

from keras_attention.console import plain_app
from keras_attention.errors import UsageError

app = plain_app(help="Export a run folder for TensorFlow Serving or ONNX Runtime.", no_args_is_help=True)

RunArgument = Annotated[Path, typer.Argument(help="A run folder, or a model saved as FILE.keras.")]
BeamsOption = Annotated[int | None, typer.Option(help="Beams of the exported search; 1, greedy, by default.", min=1)]

PenaltyOption = Annotated[
    float | None, typer.Option(help="Exponent of the beam search's length penalty; 0.6 by default.")
]
MaxLengthOption = Annotated[
    int | None, typer.Option(help="Positions of a decoding state of fixed size; the model's own by default.", min=1)
]


@app.command("saved-model")
def saved_model(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(help="Folder of the versions; an existing one gets the next version.")],
    beams: BeamsOption = None,
    length_penalty: PenaltyOption = None,
    max_length: MaxLengthOption = None,
):
    """Write a SavedModel: text or images in, text or labels out; of a translator every step between as a signature."""
    model, known = load(run)
    from keras_attention.export import export_saved_model  # after the checks of the folder, which load no TensorFlow

    options = {"beams": beams, "length_penalty": length_penalty, "max_length": max_length}
    print(export_saved_model(model, out, **known, **options))


@app.command("onnx")
def onnx(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    beams: BeamsOption = None,
    length_penalty: PenaltyOption = None,
    max_length: MaxLengthOption = None,
):
    """Write an ONNX folder: encoder, decoder and decoder with past, or one graph for another model."""
    model, known = load(run)
    from keras_attention.export import export_onnx  # after the checks of the folder, which load no TensorFlow

    options = {"beams": beams, "length_penalty": length_penalty, "max_length": max_length}
    print(export_onnx(model, out, **known, **options))


def load(run):
    """`(model, known)` of a run folder or a .keras file: the model, and what the exports need to know beside it.

    Raises:
        UsageError: nothing there, it is an export already, or a piece is missing or damaged.
    """
    from keras_attention.inference.folders import find_model
    from keras_attention.inference.keras_models import load_keras_model, load_run

    found = find_model(run, None)
    if found.layout == "keras":
        return load_keras_model(found.path), {}
    if found.layout != "run":
        raise UsageError(f"{run} is an export already. Give a run folder of keras-attention train, or FILE.keras.")
    loaded = load_run(found)
    known = {"tokenizer": loaded.tokenizer, "images": loaded.images}
    return loaded.model, {name: x for name, x in known.items() if x is not None}
