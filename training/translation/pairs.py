"""Sentence pairs: read from files, with an account of what was left out, and split by source sentence."""

import gzip
import hashlib
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_attention.errors import UsageError

MAX_CHARACTERS = 1_000


@dataclass(frozen=True)
class Problem:
    """A line of a file that is no usable pair.

    Attributes:
        line: Its number, from 1.
        reason: Why; equal reasons are counted together.
    """

    line: int
    reason: str


@dataclass
class Pairs:
    """Sentences and their translations, in order.

    Attributes:
        sources: N sentences.
        targets: Their N translations.
        kinds: What kind of sentence each is, to score kinds apart. None: not known.
        problems: The lines that were left out.
        origin: Where the pairs came from, for messages.
        notes: What a user should know about them, a line each.
    """

    sources: list[str]
    targets: list[str]
    kinds: list[str] | None = None
    problems: list[Problem] = field(default_factory=list)
    origin: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self):
        if len(self.sources) != len(self.targets) or (self.kinds is not None and len(self.kinds) != len(self.sources)):
            kinds = "" if self.kinds is None else f", {len(self.kinds)} kinds"
            raise ValueError(
                f"sources, targets and kinds must be of one length. Got {len(self.sources)} sources, "
                f"{len(self.targets)} targets{kinds}."
            )

    def __len__(self):
        return len(self.sources)

    def select(self, indices, origin=None):
        """The pairs at `indices`, in that order, without problems and notes."""
        return Pairs(
            [self.sources[i] for i in indices],
            [self.targets[i] for i in indices],
            None if self.kinds is None else [self.kinds[i] for i in indices],
            origin=self.origin if origin is None else origin,
        )

    def summary(self):
        """What was read and what was left out, in a few lines for the user."""
        lines = [f"{self.origin or 'pairs'}: {len(self):,} pairs"]
        if self.problems:
            lines[0] += f"; {len(self.problems):,} lines left out"
        places = {}
        for problem in self.problems:
            places.setdefault(problem.reason, []).append(problem.line)
        for reason, found in sorted(places.items(), key=lambda item: -len(item[1])):
            shown = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
            lines.append(f"  {len(found):,} x {reason} (line {shown})")
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def read_pairs(data, **options):
    """Reads one table (a path: `read_tsv`) or two parallel text files (two paths: `read_parallel`)."""
    if isinstance(data, (str, Path)):
        return read_tsv(data, **options)
    paths = list(data) if isinstance(data, Sequence) else []
    if len(paths) == 1:
        return read_tsv(paths[0], **options)
    if len(paths) != 2:
        raise UsageError(f"sentence pairs come from one .tsv file or from two parallel text files. Got {data!r}.")
    return read_parallel(*paths, **options)


def read_tsv(path, *, source_column=0, target_column=1, max_characters=MAX_CHARACTERS):
    """Reads sentence pairs from a tab-separated table without a header, one pair a line.

    A line that cannot be used is left out and recorded: other columns than the file usually has (a stray tab would
    shift them), not UTF-8, a carriage return inside, an empty side, or longer than `max_characters`. Windows line
    ends, those of carriage returns alone, and a byte order mark are no problem; there is no quoting.

    Args:
        path: The file, UTF-8; compressed when the name ends in `.gz`.
        source_column: Column of the source sentence, from 0.
        target_column: Column of its translation.
        max_characters: The most characters a sentence may have.

    Returns:
        `Pairs`; their `problems` say which lines were left out and why.

    Raises:
        UsageError: There is no such file, it is no text, it has too few columns, or no line is usable.
    """
    if source_column == target_column or min(source_column, target_column) < 0:
        raise UsageError(
            f"source and target must be two different columns, counted from 0. Got {source_column} and {target_column}."
        )
    rows = [line if isinstance(line, Problem) else line.split("\t") for line in _read_lines(path)]
    counts = Counter(len(row) for row in rows if not isinstance(row, Problem))
    needed = max(source_column, target_column) + 1
    enough = {columns: count for columns, count in counts.items() if columns >= needed}
    if counts and not enough:
        raise UsageError(
            f"{path} has {_columns(max(counts))} and no column {needed}: expected lines of text with tabs between the "
            f"columns, source in column {source_column} and target in column {target_column} (counted from 0)"
        )
    usual = max(enough, key=enough.get, default=0)
    reading = _Reading(str(path), max_characters)
    for line, row in enumerate(rows, 1):
        if isinstance(row, Problem):
            reading.problems.append(row)
        elif row == [""]:
            reading.problems.append(Problem(line, "empty line"))
        elif len(row) != usual:
            reading.problems.append(Problem(line, f"{_columns(len(row))} where the file usually has {usual}"))
        else:
            reading.add(line, row[source_column], row[target_column])
    return reading.pairs()


def read_parallel(source_path, target_path, *, max_characters=MAX_CHARACTERS):
    """Reads sentence pairs from two text files whose lines correspond.

    Args:
        source_path: One source sentence a line, UTF-8; compressed when the name ends in `.gz`.
        target_path: The translations, in the same order.
        max_characters: The most characters a sentence may have; longer ones are left out and recorded, as are lines
            that are not UTF-8 and pairs with an empty side.

    Returns:
        `Pairs`; their `problems` say which lines were left out and why.

    Raises:
        UsageError: A file is missing or no text, the numbers of lines differ, or no line is usable.
    """
    sources, targets = _read_lines(source_path), _read_lines(target_path)
    for lines in (sources, targets):
        while lines and lines[-1] == "":
            lines.pop()
    if len(sources) != len(targets):
        raise UsageError(
            f"{source_path} has {len(sources)} lines and {target_path} has {len(targets)}: line n of one must be the "
            "translation of line n of the other"
        )
    reading = _Reading(f"{source_path} + {target_path}", max_characters)
    for line, (source, target) in enumerate(zip(sources, targets), 1):
        wrong = next((side for side in (source, target) if isinstance(side, Problem)), None)
        if wrong:
            reading.problems.append(wrong)
        else:
            reading.add(line, source, target)
    return reading.pairs()


class _Reading:
    """Collects usable pairs and records the others."""

    def __init__(self, origin, max_characters):
        if max_characters < 1:
            raise UsageError(f"max_characters must be at least 1. Got {max_characters}.")
        self.origin = origin
        self.max_characters = max_characters
        self.sources, self.targets, self.problems = [], [], []

    def add(self, line, source, target):
        source, target = source.strip(), target.strip()
        longest = max(len(source), len(target))
        if not source or not target:
            self.problems.append(Problem(line, f"empty {'target' if source else 'source'}"))
        elif longest > self.max_characters:
            self.problems.append(Problem(line, f"longer than {self.max_characters} characters"))
        else:
            self.sources.append(source)
            self.targets.append(target)

    def pairs(self):
        pairs = Pairs(self.sources, self.targets, problems=self.problems, origin=self.origin)
        if not pairs.sources and not self.problems:
            raise UsageError(f"{self.origin}: no line has text in it; give files with sentence pairs")
        if not pairs.sources:
            reason, count = Counter(problem.reason for problem in self.problems).most_common(1)[0]
            raise UsageError(
                f"{self.origin}: none of {len(self.problems)} lines is a usable pair; {count} x {reason}, "
                f"first in line {next(p.line for p in self.problems if p.reason == reason)}"
            )
        return pairs


def _read_lines(path):
    """The lines of a text file; a `Problem` in place of a line that is not UTF-8."""
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: give the path of a text file with sentence pairs") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is not a complete gzip file ({error}): compress it again, or drop the .gz") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if not data.strip():
        raise UsageError(f"{path} is empty: expected one sentence pair a line")
    if data[:2] == b"\x1f\x8b":
        raise UsageError(f"{path} is compressed: let its name end in .gz")
    if b"\0" in data:
        raise UsageError(f"{path} is not a text file in UTF-8: it has zero bytes; convert it, for instance with iconv")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\n" not in data:  # lines that end in a carriage return alone, as spreadsheets on a Mac may write them
        data = data.replace(b"\r", b"\n")
    lines = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        try:
            lines.append(Problem(number, "a carriage return inside") if b"\r" in line else line.decode("utf-8"))
        except UnicodeDecodeError:
            lines.append(Problem(number, "not UTF-8"))
    return lines


def _columns(count):
    return f"{count} column{'s' * (count != 1)}"


def split_by_source(pairs, *, validation=0.02, test=0.02, seed=0):
    """Splits pairs into training, validation and test so that no source sentence is in two of them.

    A hash of the source decides, after NFKC, case folding and white space are evened out: the same sentence goes to
    the same side on every machine, and stays there when others are added. The fractions are of different source
    sentences, and met approximately.

    Args:
        pairs: `Pairs`.
        validation: Fraction for validation, 0 or more.
        test: Fraction for the test.
        seed: Gives another split.

    Returns:
        `{"train": Pairs, "validation": Pairs, "test": Pairs}`, each in the order of `pairs`. Training is never empty;
        the others have at least one sentence where three or more are there to share. What a tiny corpus cannot give is
        said in the `notes` of "train".

    Raises:
        UsageError: The fractions leave nothing for training, or there are no pairs.
    """
    if validation < 0 or test < 0 or validation + test >= 1:
        raise UsageError(
            "the validation and test fractions must be 0 or more and leave something for training. Got "
            f"{validation} and {test}."
        )
    if not len(pairs):
        raise UsageError(f"{pairs.origin or 'the corpus'} has no pairs to split")
    keys = [normalized(source) for source in pairs.sources]
    places = sorted((hash_place(key, seed), key) for key in set(keys))
    side = {}
    for place, key in places:
        side[key] = "validation" if place < validation else "test" if place < validation + test else "train"
    notes = _fill_empty_sides([key for _, key in places], side, {"validation": validation, "test": test})
    split = {}
    for name in ("train", "validation", "test"):
        chosen = [index for index, key in enumerate(keys) if side[key] == name]
        split[name] = pairs.select(chosen, origin=f"{pairs.origin} ({name})".strip())
    split["train"].notes = notes
    return split


def _fill_empty_sides(ordered, side, fractions):
    """Moves single sentences where chance left a side of a small corpus empty; returns what remains to be said."""
    notes = []
    wanted = ["train"] + [name for name, fraction in fractions.items() if fraction > 0]
    for name in wanted:
        if name in side.values():
            continue
        spare = Counter(side.values())
        # The first (or, for training, the last) in the order of the hash whose own side can do without it.
        for key in ordered if name != "train" else reversed(ordered):
            if spare[side[key]] > 1 or name == "train":
                side[key] = name
                break
        else:
            notes.append(f"too few different sentences ({len(ordered)}) for a {name} split: it is empty")
    return notes


def normalized(sentence):
    """The form in which two sentences count as the same: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", sentence).casefold().split())


def hash_place(key, seed):
    """A number from 0 to 1 for a text, spread evenly, that depends on nothing but the arguments."""
    # JSON can hold half of a surrogate pair, which is no UTF-8.
    digest = hashlib.blake2b(f"{seed}\n{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
