"""Reading sentence pairs: bad lines are counted, bad files are one clear error; splitting never leaks a sentence."""

import gzip
import hashlib
from collections import Counter

import pytest

from keras_attention.errors import UsageError
from keras_attention.training.translation.pairs import (
    Pairs,
    Problem,
    normalized,
    read_pairs,
    read_parallel,
    read_tsv,
    split_by_source,
)


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        content = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") and content[:2] != b"\x1f\x8b" else content)
        return path

    return write


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "carriage returns alone"])  # case 61
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
def test_good_lines_are_read_as_they_are(write, name, end, mark):
    content = mark + end.join(["the cat\tdie Katze\tCC BY", " a\u2028hat \tein 'Hut\"\tx", "日本\tJapan\t"])
    for last in ("", end):
        pairs = read_tsv(write(name, content + last))
        assert pairs.sources == ["the cat", "a\u2028hat", "日本"]
        assert pairs.targets == ["die Katze", "ein 'Hut\"", "Japan"]
        assert pairs.problems == [] and pairs.kinds is None
        assert pairs.summary() == f"{pairs.origin}: 3 pairs"


def test_a_carriage_return_inside_a_line_is_no_line_end_and_no_text(write):
    """Case 61: parallel files would go out of step if it were one, and a model would learn it if it were the other."""
    pairs = read_tsv(write("pairs.tsv", "one\teins\ntwo\rx\tzwei\nthree\tdrei\r\n"))
    assert pairs.sources == ["one", "three"] and pairs.targets == ["eins", "drei"]
    assert [(problem.line, problem.reason) for problem in pairs.problems] == [(2, "a carriage return inside")]
    sources, targets = write("a.en", "one\rtwo\rthree\r"), write("a.de", "eins\nzwei\ndr\rei\n")
    pairs = read_parallel(sources, targets)
    assert pairs.sources == ["one", "two"] and pairs.targets == ["eins", "zwei"]
    assert [(problem.line, problem.reason) for problem in pairs.problems] == [(3, "a carriage return inside")]


def test_bad_lines_are_counted_and_located(write):
    lines = [
        b"one\teins",
        b"two",
        b"three\tdrei\textra",
        b"\xff\xfe\tvier",
        b"",
        b"five\t ",
        b"\tsechs",
        b"seven\t" + b"s" * 21,
        b"eight\tacht",
        b"nine",
    ]
    path = write("pairs.tsv", b"\n".join(lines) + b"\n")
    pairs = read_tsv(path, max_characters=20)
    assert pairs.sources == ["one", "eight"] and pairs.targets == ["eins", "acht"]
    assert pairs.problems == [
        Problem(2, "1 column where the file usually has 2"),
        Problem(3, "3 columns where the file usually has 2"),
        Problem(4, "not UTF-8"),
        Problem(5, "empty line"),
        Problem(6, "empty target"),
        Problem(7, "empty source"),
        Problem(8, "longer than 20 characters"),
        Problem(10, "1 column where the file usually has 2"),
    ]
    summary = pairs.summary().splitlines()
    assert summary[0] == f"{path}: 2 pairs; 8 lines left out"
    assert summary[1] == "  2 x 1 column where the file usually has 2 (line 2, 10)"
    assert len(summary) == 8


def test_summary_shows_the_first_lines_of_many():
    problems = [Problem(line, "empty source") for line in range(1, 2001)]
    summary = Pairs(["a"], ["b"], problems=problems, origin="f.tsv", notes=["a note"]).summary()
    assert summary == (
        "f.tsv: 1 pairs; 2,000 lines left out\n  2,000 x empty source (line 1, 2, 3, 4, 5, ...)\n  a note"
    )


def test_columns_can_be_chosen(write):
    path = write("pairs.tsv", "page\tthe cat\tel gato\npage\ta hat\tun sombrero")
    pairs = read_tsv(path, source_column=2, target_column=1)
    assert pairs.sources == ["el gato", "un sombrero"] and pairs.targets == ["the cat", "a hat"]
    with pytest.raises(
        UsageError, match=r"pairs.tsv has 3 columns and no column 4: .*source in column 1 and target in"
    ):
        read_tsv(path, source_column=1, target_column=3)
    with pytest.raises(UsageError, match=r"two different columns, counted from 0. Got 1 and 1"):
        read_tsv(path, source_column=1, target_column=1)
    with pytest.raises(UsageError, match=r"two different columns, counted from 0. Got -1 and 1"):
        read_tsv(path, source_column=-1, target_column=1)


def test_parallel_files(write):
    sources = write("text.en", "one\r\ntwo\n\nfour\nfive\n\n")
    targets = write("text.de.gz", b"eins\nzw\xff\ndrei\nvier\n" + b"x" * 9)
    pairs = read_parallel(sources, targets, max_characters=8)
    assert pairs.sources == ["one", "four"] and pairs.targets == ["eins", "vier"]
    assert pairs.problems == [
        Problem(2, "not UTF-8"),
        Problem(3, "empty source"),
        Problem(5, "longer than 8 characters"),
    ]
    assert read_pairs([sources, targets], max_characters=8) == pairs
    with pytest.raises(
        UsageError, match=r"text.en has 5 lines and .*short has 1: line n of one must be the translation"
    ):
        read_parallel(sources, write("short", "eins"))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("empty.tsv", b"", "is empty: expected one sentence pair a line"),
        ("blank.tsv", b"\n \r\n\n", "is empty"),
        ("empty.tsv.gz", b"", "is empty"),
        ("column.tsv", b"one\ntwo\nthree\n", "has 1 column and no column 2: expected lines of text with tabs"),
        ("binary.tsv", bytes(range(256)) * 9, "is not a text file in UTF-8: it has zero bytes"),
        ("utf16.tsv", "one\teins\n".encode("utf-16"), "is not a text file in UTF-8"),
        (
            "latin.tsv",
            "größer\tgreater\n".encode("latin-1"),
            "none of 1 lines is a usable pair; 1 x not UTF-8, first in line 1",
        ),
        ("sides.tsv", b"a\t\nb\t\n\tc\n", "none of 3 lines is a usable pair; 2 x empty target, first in line 1"),
        ("hidden.tsv", gzip.compress(b"one\teins\n"), "is compressed: let its name end in .gz"),
        ("plain.tsv.gz", b"\x1f\x8bno", "is not a complete gzip file"),
        ("cut.tsv.gz", gzip.compress(b"one\teins\n" * 99)[:-9], "is not a complete gzip file"),
        ("broken.tsv.gz", gzip.compress(b"one\teins\n")[:12] + b"\xff" * 20, "is not a complete gzip file"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and " " not in value else "",
)
def test_a_bad_file_is_one_clear_error(write, name, content, message):
    path = write(name, content)
    with pytest.raises(UsageError) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_path_and_directory(tmp_path):
    with pytest.raises(UsageError, match=r"no.tsv does not exist: give the path of a text file"):
        read_pairs(tmp_path / "no.tsv")
    with pytest.raises(UsageError, match=f"{tmp_path} cannot be read: Is a directory"):
        read_pairs(str(tmp_path))
    with pytest.raises(UsageError, match=r"one .tsv file or from two parallel text files. Got 3"):
        read_pairs(3)
    with pytest.raises(UsageError, match=r"max_characters must be at least 1. Got 0"):
        (tmp_path / "a.tsv").write_text("a\tb")
        read_pairs(tmp_path / "a.tsv", max_characters=0)


def test_real_corpora(data_dir):
    pairs = read_pairs(data_dir / "tatoeba_en_zh" / "cmn.tsv.gz")
    assert len(pairs) == 24_026 and pairs.problems == []
    pairs = read_pairs(data_dir / "tldr_en_es" / "tldr_en_es.tsv.gz", source_column=1, target_column=2)
    assert len(pairs) == 7_680 and pairs.problems == []


def test_sides_must_match():
    with pytest.raises(ValueError, match=r"of one length. Got 2 sources, 1 targets, 3 kinds"):
        Pairs(["a", "b"], ["c"], kinds=["x"] * 3)


def corpus(count):
    return Pairs(
        [f"sentence number {n // 2}" for n in range(count)],
        [f"Satz {n}" for n in range(count)],
        kinds=["x", "y"] * (count // 2),
    )


def test_split_keeps_equal_sources_together_and_loses_nothing():
    pairs = corpus(4000)
    pairs.sources[1::2] = [source.upper().replace(" ", "\u00a0 ") for source in pairs.sources[1::2]]
    split = split_by_source(pairs, validation=0.1, test=0.2)
    found = Counter(pair for side in split.values() for pair in zip(side.sources, side.targets, side.kinds))
    assert found == Counter(zip(pairs.sources, pairs.targets, pairs.kinds))
    keys = {name: set(map(normalized, side.sources)) for name, side in split.items()}
    assert not keys["train"] & keys["validation"] and not keys["train"] & keys["test"]
    assert not keys["validation"] & keys["test"]
    # Within five standard deviations of the fractions, over 2,000 different sentences.
    assert abs(len(keys["validation"]) - 200) < 5 * 13.5 and abs(len(keys["test"]) - 400) < 5 * 18
    for side in split.values():
        order = [int(target.split()[1]) for target in side.targets]
        assert order == sorted(order)
    assert split["train"].notes == []


def test_split_is_stable_when_pairs_are_added_and_differs_by_seed():
    small, large = (split_by_source(corpus(count), validation=0.1, test=0.1) for count in (1000, 3000))
    for name in small:
        assert set(small[name].targets) <= set(large[name].targets)
    other = split_by_source(corpus(1000), validation=0.1, test=0.1, seed=1)
    assert other["validation"].targets != small["validation"].targets


def test_split_does_not_depend_on_the_process():
    """The side follows from a digest of the text, never from Python's own hash, which is another in each process."""
    split = split_by_source(corpus(200), validation=0.1, test=0.1, seed=7)
    side = {source: name for name in split for source in split[name].sources}
    for source, name in side.items():
        place = int(hashlib.blake2b(f"7\n{source}".encode(), digest_size=8).hexdigest(), 16) / 2**64
        assert name == ("validation" if place < 0.1 else "test" if place < 0.2 else "train")


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("seed", range(4))
def test_tiny_corpora_always_train(count, seed):
    pairs = Pairs([f"a{n}" for n in range(count)], ["b"] * count, origin="tiny")
    split = split_by_source(pairs, validation=0.3, test=0.3, seed=seed)
    sizes = {name: len(side) for name, side in split.items()}
    assert sum(sizes.values()) == count and sizes["train"] > 0
    if count >= 3:
        assert all(sizes.values()) and split["train"].notes == []
    else:
        empty = [name for name, size in sizes.items() if not size]
        assert split["train"].notes == [
            f"too few different sentences ({count}) for a {name} split: it is empty" for name in empty
        ]
        assert split["train"].origin == "tiny (train)"


def test_no_fraction_means_no_sentence():
    split = split_by_source(corpus(20), validation=0, test=0)
    assert [len(split[name]) for name in ("train", "validation", "test")] == [20, 0, 0]
    assert split["train"].notes == []


def test_wrong_fractions_are_explained():
    for validation, test in ((0.5, 0.5), (-0.1, 0.1), (1, 0)):
        with pytest.raises(UsageError, match=f"leave something for training. Got {validation} and {test}"):
            split_by_source(corpus(20), validation=validation, test=test)
    with pytest.raises(UsageError, match=r"f.tsv has no pairs to split"):
        split_by_source(Pairs([], [], origin="f.tsv"))
