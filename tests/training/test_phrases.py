"""The embedded corpus: what it holds, that it is learnable in principle, and what other locales give."""

import random
import re
import sys
from collections import Counter, defaultdict
from functools import partial

import pytest

from keras_attention.errors import UsageError
from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.translation import phrase_kinds
from keras_attention.training.translation.pairs import normalized
from keras_attention.training.translation.phrase_kinds import Kind
from keras_attention.training.translation.phrases import phrase_pairs

PARTS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def german():
    return phrase_pairs(3_600, held_out=360)


def rows(pairs, kind=None):
    return [row for row in zip(pairs.sources, pairs.targets, pairs.kinds) if kind in (None, row[2])]


def test_kinds_have_equal_shares_in_every_part(german):
    for name, size in (("train", 3_600), ("validation", 360), ("test", 360)):
        assert len(german[name]) == size
        shares = Counter(german[name].kinds)
        assert len(shares) == 12
        assert min(shares.values()) >= size // 12 and max(shares.values()) <= size // 12 + 1
        # The order is mixed: every kind is among the first sixth.
        assert len(set(german[name].kinds[: size // 6])) == 12


def test_no_source_is_in_two_parts_or_twice(german):
    sources = [normalized(source) for part in PARTS for source in german[part].sources]
    assert len(sources) == len(set(sources))


def years(text):
    """The years a phrase with a date shows, whole or with two digits."""
    found = re.findall(r"(?<!\d)(\d{4})(?!\d)", text) or re.findall(r"^\d+/\d+/(\d\d)\b", text)
    return {int(year) % 100 for year in found}


def test_held_out_dates_come_from_years_that_training_never_saw(german):
    seen = defaultdict(set)
    for part in PARTS:
        for kind in ("date", "date and time", "span"):
            for source, target, _ in rows(german[part], kind):
                shown = years(source)
                assert shown, source
                assert shown == years(target) or shown == {int(target.split(",")[0][-2:])}, (source, target)
                seen[part] |= shown
    assert not seen["train"] & (seen["validation"] | seen["test"])
    assert len(seen["train"]) == 90 and len(seen["test"]) == 10
    # One of each decade, and of each last digit.
    assert len({year // 10 for year in seen["test"]}) == len({year % 10 for year in seen["test"]}) == 10


def test_every_form_is_in_training_and_test(german):
    forms = {
        "date": [r"^\d+/\d+/\d\d$", r"^[A-Z][a-z]{2} \d+, \d{4}$", r"^[A-Z][a-z]{3,} \d+, \d{4}$", r"^[A-Z][a-z]+day, "]
        + [r"^[A-Z][a-z]{2}, ", r"^[A-Z][a-z]+ \d{4}$", r"^\d.. quarter \d{4}$"],
        "duration": [r"^in \d+ ", r" ago$", r"^\d+ \w+ and \d+ \w+$"],
        "list": [r", and ", r", or ", r"^[\w ]+ and [\w ]+$", r"^[\w ]+ or [\w ]+$"],
        "number": [r"^[\d,]+$", r"\.\d", r"(thousand|million|billion)$"],
        "ordinal": [r"^\d+(st|nd|rd|th)$", r"^[a-z,-]+( |$)"],
        "span": [
            r"^[A-Z]..? \d+ – \d+, \d{4}$",
            r"^[A-Z]\w+ \d+ – [A-Z]\w+ \d+, \d{4}$",
            r"^[A-Z]\w+ – [A-Z]\w+ \d{4}$",
        ],
        "time": [r"^\d+:\d+ [AP]M$", r"^\d+:\d+:\d+ [AP]M$"],
    }
    for part in ("train", "test"):
        for kind, patterns in forms.items():
            for pattern in patterns:
                assert any(re.search(pattern, source) for source, _, _ in rows(german[part], kind)), (part, pattern)


MONTHS = ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November")
MONTHS += ("Dezember",)
ENGLISH_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def test_targets_say_what_the_sources_say(german):
    """An independent translation of the regular forms."""
    checked = Counter()
    for source, target, kind in rows(german["train"]):
        if found := re.fullmatch(r"(\d+)/(\d+)/(\d\d)", source):
            month, day, year = map(int, found.groups())
            expected = f"{day:02}.{month:02}.{year:02}"
        elif (found := re.fullmatch(r"([A-Z]..) (\d+), (\d{4})", source)) and kind == "date":
            expected = f"{int(found[2]):02}.{ENGLISH_MONTHS.index(found[1]) + 1:02}.{found[3]}"
        elif (found := re.fullmatch(r"([A-Z]\w{3,}) (\d+), (\d{4})", source)) and kind == "date":
            expected = f"{found[2]}. {MONTHS[ENGLISH_MONTHS.index(found[1][:3])]} {found[3]}"
        elif found := re.fullmatch(r"(\d+):(\d\d)(:\d\d)? ([AP])M", source):
            expected = f"{int(found[1]) % 12 + 12 * (found[4] == 'P'):02}:{found[2]}{found[3] or ''}"
        elif re.fullmatch(r"[\d,.]+", source) or kind == "percent":
            expected = source.translate(str.maketrans(",.", ".,")).replace("%", " %")
        elif found := re.fullmatch(r"(\d+)(st|nd|rd|th)", source):
            expected = f"{found[1]}."
        elif found := re.fullmatch(r"€([\d,.]+)", source):
            expected = found[1].translate(str.maketrans(",.", ".,")) + " €"
        elif kind == "number words" and re.fullmatch(r"(\w+ty)-(one|three|four|five|eight)", source):
            tens = {"twen": "zwan", "thir": "drei", "for": "vier", "fif": "fünf", "six": "sech", "seven": "sieb"}
            tens = tens | {"eigh": "acht", "nine": "neun"}
            ones = {"one": "ein", "three": "drei", "four": "vier", "five": "fünf", "eight": "acht"}
            ten, one = source.split("-")
            expected = f"{ones[one]}und{tens[ten.removesuffix('ty')]}{'ß' if ten == 'thirty' else 'z'}ig"
        else:
            continue
        assert target == expected, source
        checked[kind] += 1
    assert set(checked) == {"date", "time", "number", "percent", "ordinal", "money", "number words"}
    assert min(checked.values()) >= 8, checked


def test_deterministic_for_a_seed_and_independent_of_global_randomness():
    random.seed(1)
    one = phrase_pairs(240, held_out=24, seed=3)
    random.seed(2)
    assert phrase_pairs(240, held_out=24, seed=3) == one
    assert phrase_pairs(240, held_out=24, seed=4)["train"].sources != one["train"].sources


@pytest.mark.parametrize(
    "locales", [("en", "de"), ("de", "en"), ("fr", "es"), ("en", "ja"), ("pl", "ru"), ("en", "fa"), ("pt-BR", "tr")]
)
def test_the_tokenizer_gives_every_sentence_back(locales):
    """References must be texts that a model can write: no non-breaking spaces, ligatures or direction marks."""
    split = phrase_pairs(480, source_locale=locales[0], target_locale=locales[1], held_out=48)
    train = split["train"]
    assert len(set(train.kinds)) >= 11
    tokenizer = SentencePieceTokenizer.train(train.sources + train.targets, 350, character_coverage=1.0)
    for part in PARTS:
        for texts in (split[part].sources, split[part].targets):
            ids = tokenizer.encode(texts)
            assert max(map(len, ids)) < 70
            if part == "train":
                assert tokenizer.decode(ids) == texts
            assert not any(re.search(r"\s\s|[^\S ]", text) for text in texts)


def test_one_source_form_has_one_target_form():
    """In French the medium and the long date are alike in some months; no value may then be written in both forms."""
    train = phrase_pairs(2_400, source_locale="fr", target_locale="de", held_out=0)["train"]
    styles = defaultdict(set)
    for source, target, _ in rows(train, "date"):
        if found := re.fullmatch(r"\d+ ([^\d ]+) \d{4}", source):
            styles[found[1]].add("digits" if re.fullmatch(r"[\d.]+", target) else "words")
    assert len(styles) >= 12
    assert all(len(style) == 1 for style in styles.values()), styles


def test_kinds_a_language_lacks_are_left_out_and_said():
    split = phrase_pairs(500, target_locale="zh_Hant", held_out=10)
    assert split["train"].notes == ["left out: number words, ordinal (num2words does not speak zh_Hant)"]
    assert split["train"].summary().endswith(split["train"].notes[0])
    assert len(split["train"]) == 500 and len(set(split["train"].kinds)) == 10
    assert split["train"].origin == "phrases en to zh_Hant (train)"


@pytest.mark.parametrize(
    "name, suggestion",
    [
        ("xx", "use a CLDR code such as"),
        ("german", "did you mean 'de'"),
        ("Français", "did you mean 'fr'"),
        ("日本語", "did you mean 'ja'"),
        ("de_DR", "did you mean 'de_DE'"),
        ("de_XX_YY_ZZ", "use a CLDR code such as"),
        ("", "use a CLDR code such as"),
        ("../../etc/passwd", "use a CLDR code such as"),
    ],
)
@pytest.mark.parametrize("side", ["source_locale", "target_locale"])
def test_unknown_locale_is_named_and_a_near_one_suggested(name, suggestion, side):
    with pytest.raises(UsageError, match=re.escape(f"unknown locale {name!r}: {suggestion}")):
        phrase_pairs(10, **{side: name})


def test_impossible_requests_are_explained():
    with pytest.raises(UsageError, match="source and target are the same locale, de"):
        phrase_pairs(10, source_locale="de")
    for name, value in (("count", 0), ("held_out", -1), ("seed", -1), ("count", 2.5)):
        with pytest.raises(UsageError, match=f"{name} must be a whole number of at least .. Got {value}"):
            phrase_pairs(**{"count": 10, name: value})


def test_asking_for_more_than_there_is_names_the_kind(monkeypatch):
    def write(value, locale, kind):
        return f"{kind} {locale} {value}"

    few = [
        Kind(kind.name, lambda rng, years: int(rng.integers(40)), (partial(write, kind=kind.name),))
        for kind in phrase_kinds.KINDS
    ]
    monkeypatch.setattr(phrase_kinds, "KINDS", tuple(few))
    assert len(phrase_pairs(240, held_out=0)["train"]) == 240
    with pytest.raises(UsageError, match="there are not 50 different phrases of kind 'date' left: ask for fewer pairs"):
        phrase_pairs(600, held_out=0)


def test_fewer_than_eight_kinds_are_refused(monkeypatch):
    monkeypatch.setattr(phrase_kinds, "KINDS", phrase_kinds.KINDS[4:])
    with pytest.raises(UsageError, match=r"en to zh gives only 6 kinds of phrase, fewer than 8 .number words, ordinal"):
        phrase_pairs(10, target_locale="zh")


@pytest.mark.parametrize("library", ["babel", "num2words"])
def test_without_its_libraries_the_extra_is_named(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        UsageError, match=rf"{library} cannot be imported .*pip install 'keras-attention\[translation\]'"
    ):
        phrase_pairs(10)
