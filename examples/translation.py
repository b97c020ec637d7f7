"""Train a small translator, export it twice and use all three: the public API in a few lines.

python examples/translation.py [pairs.tsv.gz]
"""

import sys
from pathlib import Path

from keras_attention.export import export_onnx, export_saved_model
from keras_attention.generation import Translator
from keras_attention.training.translation.options import TranslationOptions
from keras_attention.training.translation.task import train

OUT = Path("runs/example")
TEXTS = ["March 3, 2031", "seven hundred twelve", "5:40 PM"]


def main():
    options = TranslationOptions(
        out=str(OUT / "run"),
        data=sys.argv[1] if len(sys.argv) > 1 else "embedded",
        d_model=128,
        layers=2,
        heads=4,
        minutes=2,
    )
    metrics = train(options)
    print(f"BLEU {metrics['test/bleu']:.1f}, exact match {metrics['test/exact_match']:.1%}")

    trained = Translator.load(OUT / "run").backend
    print(export_saved_model(trained.model, OUT / "saved_model", tokenizer=trained.tokenizer))
    print(export_onnx(trained.model, OUT / "onnx", tokenizer=trained.tokenizer))

    for place in (OUT / "run", OUT / "saved_model", OUT / "onnx"):
        print(place, Translator.load(place)(TEXTS))


if __name__ == "__main__":
    main()
