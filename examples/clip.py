"""Train CLIP on captioned images, find images by texts of one's own, and export it twice.

python examples/clip.py IMAGES.npz CAPTIONS.json [MINUTES]
"""

import sys
from pathlib import Path

import numpy as np

from keras_attention.export import export_onnx, export_saved_model
from keras_attention.images import ImageInput
from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.clip.task import train
from keras_attention.training.run.run_folder import RunFolder

OUT = Path("runs/clip-example")
TEXTS = ["a smiling face", "flag", "fruit", "an animal with four legs"]


def main(images, captions, minutes="3"):
    metrics = train(ClipOptions(out=str(OUT / "run"), data=images, captions=captions, minutes=float(minutes)))
    print(f"recall@5 of {metrics['test/pairs']:.0f} pairs: {metrics['test/image_to_text_recall@5']:.1%}")

    run = RunFolder(OUT / "run")
    model, tokenizer = run.load_model(), SentencePieceTokenizer.load(run.tokenizer_path)
    task = ImageInput.from_dict(run.read_config()["image_input"], run.config_path)

    pixels = np.load(images)["images"][::10]
    vectors = model.encode_image(task.normalized(task.pixels(pixels)))
    similarities = model.similarities(vectors, model.encode_text(tokenizer.tokenize(TEXTS)))
    for text, column in zip(TEXTS, np.transpose(similarities)):
        print(f"{text}: images {', '.join(str(10 * i) for i in np.argsort(-column)[:5])}")

    print(export_saved_model(model, OUT / "saved_model", tokenizer=tokenizer, images=task))
    print(export_onnx(model, OUT / "onnx", tokenizer=tokenizer, images=task))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
