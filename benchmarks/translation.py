"""What translation runs reached: `python -m benchmarks.translation TITLE RUN... [--save]`.

Reads finished run folders of `keras-attention train translation` and prints, for each, the command that repeats it, its
time, its scores on the held-out test split and a few of its translations, beside the machine's matrix-product rate.
The times are those that training itself took and wrote into metrics.json.
"""

import argparse
import shlex
import statistics
import time
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.machine import matrix_product
from keras_attention.generation import Translator
from keras_attention.training.corpus import load_corpus, sample
from keras_attention.training.options import TrainOptions
from keras_attention.training.run_folder import RunFolder
from keras_attention.training.run_options import flag_name


def command_of(options):
    """The command line that makes a run with these options (a dict as config.json holds it)."""
    defaults = TrainOptions(out="RUN").as_dict()
    words = ["keras-attention", "train", "translation", "--out", "RUN"]
    for name, value in options.items():
        if value != defaults[name]:
            on = [flag_name(name)] if value is True else [f"--no-{name.replace('_', '-')}"]
            words += on if isinstance(value, bool) else [flag_name(name), str(value)]
    return shlex.join(words)


def translations(path, options, count):
    """Pairs of held-out source, reference and translation, evenly spaced over the test split."""
    corpus = load_corpus(TrainOptions(out=str(path), **options))
    sources, references, _ = sample(corpus.splits["test"], count)
    return list(zip(sources, references, Translator.load(path)(sources)))


def matrix_rate(rounds=7):
    """The machine's float32 matrix product, operations a second, median of `rounds`."""
    product, operations = matrix_product()
    product()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        product().numpy()
        seconds.append(time.perf_counter() - began)
    return operations / statistics.median(seconds)


def main(argv=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("title", help="heading of the section")
    parser.add_argument("runs", nargs="+", type=Path, help="finished run folders")
    parser.add_argument("--sentences", type=int, default=5, help="translations to show of the first run")
    parser.add_argument("--save", action="store_true", help="write the section of RESULTS.md")
    arguments = parser.parse_args(argv)
    report = Report(arguments.title)
    rate = f"{matrix_rate() / 1e9:.0f}"
    for path in arguments.runs:
        folder = RunFolder(path)
        options, metrics = folder.read_config()["options"], folder.read_metrics()
        report.add(
            run=path.name,
            BLEU=f"{metrics['BLEU']:.1f}",
            chrF=f"{metrics['chrF']:.1f}",
            exact=f"{metrics['exact_match']:.1%}",
            parameters=f"{metrics['parameters']:,.0f}",
            epochs=f"{metrics['epochs']:.0f}",
            training=f"{metrics['train_seconds'] / 60:.1f} min",
            tokens_per_second=f"{metrics['target_tokens_per_second']:.0f}",
            **{"matrix GFLOP/s": rate},
        )
        report.notes.append(f"{path.name}: `{command_of(options)}`")
    options = RunFolder(arguments.runs[0]).read_config()["options"]
    for source, reference, translation in translations(arguments.runs[0], options, arguments.sentences):
        report.notes.append(f"{source} → {translation} (reference: {reference})")
    report.print()
    if arguments.save:
        report.save()


if __name__ == "__main__":
    main()
