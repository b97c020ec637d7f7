"""How well a CLIP finds pairs that it was not trained on: `python -m benchmarks.clip TITLE RUN... [--save]`.

Reads finished run folders of `keras-attention train clip` and prints, for each, its recalls over the held-out gallery
and how many times chance they are, its size and time, and the command that repeats it, beside the machine's
matrix-product rate. The times are those that training itself took and wrote into metrics.json.
"""

import argparse
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.runs import command_of, matrix_rate
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.run.run_folder import RunFolder


def row(name, metrics):
    """The cells of one run."""

    def recall(way, count):
        found = metrics[f"test/{way}_recall@{count}"]
        return f"{found:.1%} ({found * metrics['test/pairs'] / count:.0f}x chance)"

    cells = {"run": name, "gallery": f"{metrics['test/pairs']:.0f} pairs"}
    for way, title in (("image_to_text", "text by image"), ("text_to_image", "image by text")):
        cells |= {f"{title}, @{count}": recall(way, count) for count in (1, 5)}
    if "test/zero_shot_accuracy" in metrics:
        cells["zero-shot"] = (
            f"{metrics['test/zero_shot_accuracy']:.1%} of {metrics['test/zero_shot_classes']:.0f} groups"
        )
    return {
        **cells,
        "parameters": f"{metrics['parameters']:,.0f}",
        "epochs": f"{metrics['epochs']:.0f}",
        "training": f"{metrics['train_seconds'] / 60:.1f} min",
        "in all": f"{metrics['seconds'] / 60:.1f} min",
        "pairs per second": f"{metrics['train_rate']:.0f}",
    }


def main(argv=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clip", description=__doc__.split("\n")[0])
    parser.add_argument("title", help="heading of the section")
    parser.add_argument("runs", nargs="+", type=Path, help="finished run folders")
    parser.add_argument("--save", action="store_true", help="write the section of RESULTS.md")
    arguments = parser.parse_args(argv)
    report, rate = Report(arguments.title), f"{matrix_rate() / 1e9:.0f}"
    for path in arguments.runs:
        folder = RunFolder(path)
        report.add(**row(path.name, folder.read_metrics()), **{"matrix GFLOP/s": rate})
        command = command_of("clip", ClipOptions, folder.read_config()["options"])
        report.notes.append(f"{path.name}: `{command}`")
    report.notes.append(
        "Recall@k: the share of gallery images (texts) whose own text (image) is among the k most similar of the whole "
        "gallery; chance is k / gallery. No caption or image of the gallery is one of training's. Zero-shot: images by "
        "the text of their group's name, which training has not seen as a class."
    )
    report.print()
    if arguments.save:
        report.save()


if __name__ == "__main__":
    main()
