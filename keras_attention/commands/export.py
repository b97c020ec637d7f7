"""`keras-attention export saved-model|onnx`: from a run folder or a .keras file to what servers and runtimes load."""

from pathlib import Path
from typing import Annotated

import typer

from keras_attention.errors import UsageError

app = typer.Typer(help="Export a run folder for TensorFlow Serving or ONNX Runtime.", no_args_is_help=True)

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
    from keras_attention.export import export_saved_model

    model, known = load(run)
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
    from keras_attention.export import export_onnx

    model, known = load(run)
    options = {"beams": beams, "length_penalty": length_penalty, "max_length": max_length}
    print(export_onnx(model, out, **known, **options))


def load(run):
    """`(model, known)` of a run folder or a .keras file.

    Returns:
        The model, and what the exports need to know beside it: `tokenizer` of a translator, `images` of a classifier of
        images (its `ImageTask`), both of a CLIP (its `ImageInput`), nothing of a language model or a .keras file.

    Raises:
        UsageError: nothing there, or a piece is missing or damaged.
    """
    if run.suffix == ".keras" and not run.is_dir():
        import keras

        import keras_attention.models  # noqa: F401  registers the classes that the file names

        if not run.exists():
            raise UsageError(f"{run} does not exist: give a run folder or the file of a Keras model")
        try:
            return keras.saving.load_model(run, compile=False), {}
        except Exception as error:
            # Keras lets the errors of zip, HDF5 and JSON through: all mean the same here.
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{run} is no complete Keras model ({reason}): save it again") from error
    from keras_attention.images import ImageInput
    from keras_attention.inference import classifier as images
    from keras_attention.inference.run_backend import RunBackend
    from keras_attention.text import SentencePieceTokenizer
    from keras_attention.training.run.run_folder import RunFolder

    if not run.is_dir():
        raise UsageError(f"{run} is no folder: give a run folder of keras-attention train, or FILE.keras")
    folder = RunFolder(run)
    config = folder.read_config() if folder.config_path.exists() else {}
    if "image_input" in config:
        pixels = ImageInput.from_dict(config["image_input"], folder.config_path)
        texts = SentencePieceTokenizer.load(folder.require(folder.tokenizer_path))
        return folder.load_model(), {"tokenizer": texts, "images": pixels}
    if "images" in config:
        classifier = images.RunBackend(run)
        return classifier.model, {"images": classifier.task}
    if "tokenizer" in config:  # bytes, of which there is no file
        return folder.load_model(), {}
    translator = RunBackend(run)
    return translator.model, {"tokenizer": translator.tokenizer}
