"""What translation runs reached: `python -m benchmarks.translation TITLE RUN... [--save]`.

Reads finished run folders of `keras-attention train translation` and prints, for each, the command that repeats it, its
time, its scores on the held-out test split and a few of its translations, beside the machine's matrix-product rate.
The times are those that training itself took and wrote into metrics.json.
"""

import argparse
from pathlib import Path

from benchmarks import runs
from benchmarks.harness import Report
from keras_attention.generation import Translator
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.translation.corpus import load_corpus, sample
from keras_attention.training.translation.options import TranslationOptions


def command_of(options):
    """The command line that makes a run with these options (a dict as config.json holds it)."""
    return runs.command_of("translation", TranslationOptions, options)


def translations(path, options, count):
    """Pairs of held-out source, reference and translation, evenly spaced over the test split."""
    corpus = load_corpus(TranslationOptions(out=str(path), **options))
    sources, references, _ = sample(corpus.splits["test"], count)
    return list(zip(sources, references, Translator.load(path)(sources)))


def main(argv=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("title", help="heading of the section")
    parser.add_argument("runs", nargs="+", type=Path, help="finished run folders")
    parser.add_argument("--sentences", type=int, default=5, help="translations to show of the first run")
    parser.add_argument("--save", action="store_true", help="write the section of RESULTS.md")
    arguments = parser.parse_args(argv)
    report = Report(arguments.title)
    rate = f"{runs.matrix_rate() / 1e9:.0f}"
    for path in arguments.runs:
        folder = RunFolder(path)
        options, metrics = folder.read_config()["options"], folder.read_metrics()
        report.add(
            run=path.name,
            BLEU=f"{metrics['test/bleu']:.1f}",
            chrF=f"{metrics['test/chrf']:.1f}",
            exact=f"{metrics['test/exact_match']:.1%}",
            parameters=f"{metrics['parameters']:,.0f}",
            epochs=f"{metrics['epochs']:.0f}",
            training=f"{metrics['train_seconds'] / 60:.1f} min",
            tokens_per_second=f"{metrics['train_rate']:.0f}",
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
