"""The sentence pairs of a run, split and described."""

import hashlib
from dataclasses import dataclass

from keras_attention.training.translation.options import EMBEDDED
from keras_attention.training.translation.pairs import Pairs, read_parallel, read_tsv, split_by_source

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Corpus:
    """Three splits of sentence pairs.

    Attributes:
        splits: "train", "validation", "test" -> `Pairs`.
        origin: where they came from, in words.
    """

    splits: dict[str, Pairs]
    origin: str

    def fingerprint(self):
        """A digest of all sentences and of the split; equal for equal training data, wherever the files lie."""
        digest = hashlib.sha256()
        for split in SPLITS:
            pairs = self.splits[split]
            digest.update(f"{split} {len(pairs.sources)}\n".encode())
            for source, target in zip(pairs.sources, pairs.targets):
                digest.update(f"{source}\t{target}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_corpus(options):
    """Read the pairs that `TranslationOptions` name, and print what was left out.

    Raises:
        UsageError: nothing can be read; see `pairs` and `phrases`.
    """
    if options.source_file is not None:
        pairs = read_parallel(options.source_file, options.target_file)
    elif options.data != EMBEDDED:
        path = "/dev/stdin" if options.data == "-" else options.data
        pairs = read_tsv(path, source_column=options.source, target_column=options.target)
    else:
        from keras_attention.training.translation.phrases import (
            phrase_pairs,  # brings the locales' data, which a file does not need
        )

        source_locale, target_locale = options.locale_pair()
        splits = phrase_pairs(
            options.phrases, source_locale=source_locale, target_locale=target_locale, seed=options.seed
        )
        return _corpus(splits, f"phrases {source_locale} to {target_locale}")
    print(pairs.summary(), flush=True)
    # The same split whatever the run's seed: runs with different seeds are compared on the same sentences.
    splits = split_by_source(pairs, validation=options.validation_share, test=options.test_share)
    return _corpus(splits, pairs.origin)


def _corpus(splits, origin):
    for pairs in splits.values():
        for note in pairs.notes:
            print(f"note: {note}", flush=True)
    return Corpus(splits, origin)


def sample(pairs, count):
    """At most `count` pairs, evenly spaced, as `(sources, targets, kinds)`; kinds may be None."""
    total = len(pairs.sources)
    chosen = [i * total // count for i in range(count)] if count < total else range(total)
    kinds = None if pairs.kinds is None else [pairs.kinds[i] for i in chosen]
    return [pairs.sources[i] for i in chosen], [pairs.targets[i] for i in chosen], kinds
