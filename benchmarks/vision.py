"""What classifiers of images reached: `python -m benchmarks.vision TITLE RUN... [--save] [--claim]`.

Reads finished run folders of `keras-attention train image-classifier` and prints, for each, its scores on the test
images, its size and time, and the command that repeats it, beside the machine's matrix-product rate. Several runs of
one command with different seeds are one row: the median of their scores, with all of them beside it. The times are
those that training itself took and wrote into metrics.json.

With --claim it also prints the row of CLAIMS.md about a hybrid and a plain CNN, from a hybrid and a cnn among the runs,
and writes it with --save.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.claims import save_claim
from benchmarks.harness import Report
from benchmarks.runs import command_of, matrix_rate
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.vision.options import VisionOptions


def grouped(paths):
    """dict of command -> list of (path, options, metrics), the runs that differ in their seed only."""
    found = {}
    for path in paths:
        folder = RunFolder(path)
        options, metrics = folder.read_config()["options"], folder.read_metrics()
        found.setdefault(command_of("image-classifier", VisionOptions, options, leave_out=("seed",)), []).append(
            (path, options, metrics)
        )
    return found


def row(runs):
    """The cells of one row, from runs that differ in their seed only."""

    def median(name):
        return statistics.median(metrics[name] for _, _, metrics in runs)

    scores = [f"{metrics['test/accuracy']:.2%}" for _, _, metrics in runs]
    return {
        "run": ", ".join(path.name for path, _, _ in runs),
        "model": runs[0][1]["model"],
        "test accuracy": f"{median('test/accuracy'):.2%}" + (f" (of {', '.join(scores)})" if len(runs) > 1 else ""),
        "top 5": f"{median('test/top5_accuracy'):.2%}" if "test/top5_accuracy" in runs[0][2] else "",
        "validation": f"{median('validation/accuracy'):.2%}",
        "parameters": f"{median('parameters'):,.0f}",
        "epochs": f"{median('epochs'):.0f}",
        "training": f"{median('train_seconds') / 60:.1f} min",
        "in all": f"{median('seconds') / 60:.1f} min",
        "images per second": f"{median('train_rate'):.0f}",
    }


def claim(groups):
    """The row of CLAIMS.md about a hybrid and a plain CNN trained in the same time: its five cells.

    Raises:
        SystemExit: there is no run of one of them, or their data or limits differ.
    """
    chosen = {}
    for command, runs in groups.items():
        options, scores = runs[0][1], [metrics["test/accuracy"] for _, _, metrics in runs]
        chosen[options["model"]] = (options, statistics.median(scores), runs[0][2], command)
    missing = {"hybrid", "cnn"} - set(chosen)
    if missing:
        raise SystemExit(f"--claim needs a run of a hybrid and one of a cnn. No {missing.pop()} among the runs.")
    (first, hybrid, own, command), (second, cnn, other, plain) = chosen["hybrid"], chosen["cnn"]
    limits = ("data", "minutes", "epochs", "steps")
    if any(first[name] != second[name] for name in limits):
        raise SystemExit("--claim compares runs on the same data with the same limits.")
    points = 100 * (hybrid - cnn)
    word = "Holds." if points >= 5.8 else "Not seen here." if points <= 0 else "Smaller here."
    return (
        "a CNN-ViT hybrid against a plain CNN",
        "+5.8 points of accuracy",
        f"{points:+.1f} points: {hybrid:.1%} against {cnn:.1%} of the test images of {Path(first['data']).name} after "
        f"{own['epochs']:.0f} and {other['epochs']:.0f} epochs, {own['parameters']:,.0f} and "
        f"{other['parameters']:,.0f} parameters",
        f"{command}, and {plain}",
        f"{word} The documents name neither data, sizes nor the time of training; here both had the same limit.",
    )


def main(argv=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("title", help="heading of the section")
    parser.add_argument("runs", nargs="+", type=Path, help="finished run folders")
    parser.add_argument("--save", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--claim", action="store_true", help="print the row of CLAIMS.md too")
    arguments = parser.parse_args(argv)
    report, rate = Report(arguments.title), f"{matrix_rate() / 1e9:.0f}"
    groups = grouped(arguments.runs)
    for command, runs in groups.items():
        report.add(**row(runs), **{"matrix GFLOP/s": rate})
        seeds = ", ".join(str(options["seed"]) for _, options, _ in runs)
        report.notes.append(f"{', '.join(path.name for path, _, _ in runs)}: `{command}` with `--seed` {seeds}")
    report.print()
    if arguments.claim:
        cells = claim(groups)
        print(" | ".join(cells))
        if arguments.save:
            save_claim(*cells)
    if arguments.save:
        report.save()


if __name__ == "__main__":
    main()
