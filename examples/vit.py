"""Train a small ViT on handwritten digits, export it twice and use all three: the public API in a few lines.

python examples/vit.py [folder of IDX files, folder of classes, or .npz file]
"""

import sys
from pathlib import Path

from PIL import Image

from keras_attention.export import export_onnx, export_saved_model
from keras_attention.images import Classifier
from keras_attention.training.vision.image_sources import read_source
from keras_attention.training.vision.options import VisionOptions
from keras_attention.training.vision.task import train

OUT = Path("runs/example-vit")


def main():
    data = sys.argv[1] if len(sys.argv) > 1 else "digits"
    metrics = train(VisionOptions(out=str(OUT / "run"), data=data, minutes=1))
    print(f"test accuracy {metrics['test/accuracy']:.1%}, confusions in {OUT / 'run/confusion_matrix.png'}")

    trained = Classifier.load(OUT / "run")
    model, task = trained.backend.model, trained.task
    print(export_saved_model(model, OUT / "saved_model", images=task))
    print(export_onnx(model, OUT / "onnx", images=task))

    # Any image file will do; here some of the data as files.
    source, files = read_source(data), []
    for i in range(3):
        files.append(OUT / f"{i}.png")
        image = source.known.images[i]
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(files[-1])
    print("true", [source.names[label] for label in source.known.labels[:3]])
    for place in (OUT / "run", OUT / "saved_model", OUT / "onnx"):
        print(place, [answer.label for answer in Classifier.load(place)(files)])


if __name__ == "__main__":
    main()
