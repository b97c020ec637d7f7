"""`keras-attention classify`: image files in, labels out, from a run folder, a SavedModel or an ONNX folder."""

import sys
from typing import Annotated

import typer

from keras_attention.errors import UsageError

BATCH = 32  # images that are read before they are classified


def classify(
    image: Annotated[list[str], typer.Argument(help="Image files.")],
    model: Annotated[str, typer.Option(help="A run folder, a SavedModel or an ONNX folder of a classifier of images.")],
    top: Annotated[int, typer.Option(help="How many of the likeliest labels are printed.", min=1)] = 1,
):
    """Classify image files: a line each with the file, and label and probability, with tabs between.

    A file that cannot be read is left out with a line on standard error; the others are classified, and the command
    ends with code 2.
    """
    from keras_attention.inference.classifier import Classifier
    from keras_attention.text.well_formed import well_formed

    classifier = Classifier.load(model)
    failed = 0
    for start in range(0, len(image), BATCH):
        names, arrays = [], []
        for name in image[start : start + BATCH]:
            try:
                arrays.append(classifier.read(name))
                names.append(name)
            except UsageError as error:
                print(f"keras-attention: {error}", file=sys.stderr)
                failed += 1
        for name, answer in zip(names, classifier(arrays), strict=True):
            # A name that is no UTF-8 must not stop the others.
            _print(well_formed(name), answer, classifier.task.labels, top)
    if failed:
        print(f"keras-attention: {failed} of {len(image)} files could not be classified", file=sys.stderr)
        raise typer.Exit(2)


def _print(name, answer, labels, top):
    best = (-answer.probabilities).argsort(kind="stable")[:top]
    fields = [name, *(text for i in best for text in (labels[i], f"{answer.probabilities[i]:.4f}"))]
    print("\t".join(fields), flush=True)
