"""`keras-attention classify`: image files in, labels out, from a run folder, a SavedModel or an ONNX folder."""

import sys
from typing import Annotated

import typer

from keras_attention.errors import UsageError, printable

BATCH = 32  # images that are read before they are classified


def classify(
    image: Annotated[list[str], typer.Argument(help="Image files.")],
    model: Annotated[
        str,
        typer.Option(
            help="A run folder, a SavedModel or an ONNX folder of an image classifier. A SavedModel is code: load only "
            "what you trust."
        ),
    ],
    top: Annotated[int, typer.Option(help="How many of the likeliest labels are printed.", min=1)] = 1,
):
    """Classify image files: a line each with the file, and label and probability, with tabs between.

    A file that cannot be read is left out with a line on standard error; the others are classified, and the command
    ends with code 2.
    """
    from keras_attention.inference.classifier import Classifier

    classifier = Classifier.load(model)
    top = min(top, len(classifier.task.labels))
    failed = 0
    for start in range(0, len(image), BATCH):
        names, arrays = [], []
        for name in image[start : start + BATCH]:
            try:
                arrays.append(classifier.read(name))
                names.append(name)
            except UsageError as error:
                print(f"keras-attention: {printable(str(error))}", file=sys.stderr)
                failed += 1
        for name, answer in zip(names, classifier(arrays), strict=True):
            _print(name, answer, classifier.task.labels, top)
    if failed:
        print(f"keras-attention: {failed} of {len(image)} files could not be classified", file=sys.stderr)
        raise typer.Exit(2)


def _print(name, answer, labels, top):
    best = (-answer.probabilities).argsort(kind="stable")[:top]
    # A tab or a line end in a name or a label would be read as another field or another file.
    fields = [name, *(text for i in best for text in (labels[i], f"{answer.probabilities[i]:.4f}"))]
    print("\t".join(map(printable, fields)), flush=True)
