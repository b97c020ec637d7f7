"""The embedded corpus: phrases that two locales write differently, made from CLDR and num2words without a download."""

import difflib
import importlib
import unicodedata

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.training.translation.pairs import Pairs, hash_place, normalized

FEWEST_KINDS = 8
_HELD_OUT_SHARE = 0.1
_PROBES = 100


def phrase_pairs(count=24_000, *, source_locale="en", target_locale="de", seed=0, held_out=1_000):
    """Dates, times, spans, money, measures, durations, lists, numbers, percentages, number words and ordinals.

    The same value is written in the same form by two locales, so one source has exactly one target. All kinds have the
    same share. Dates of validation and test come from 10 years that training never sees, their other phrases are a
    tenth of all, chosen by a hash, that training never sees either; no source sentence is in two of the three. The same
    arguments give the same pairs (for one version of Babel, which brings CLDR, and of num2words).

    Text is in NFKC with plain spaces and without invisible marks, as the tokenizer writes it: an answer can be
    compared with its reference character by character.

    Args:
        count: Number of training pairs.
        source_locale: CLDR locale of the sources, such as "en", "pt_BR" or "zh-Hant".
        target_locale: CLDR locale of the targets.
        seed: Gives other values and other held-out years.
        held_out: Number of pairs of validation, and of test.

    Returns:
        `{"train": Pairs, "validation": Pairs, "test": Pairs}` with `kinds`, in mixed order. What the locales cannot
        write (num2words speaks fewer languages than CLDR) is left out and said in the `notes` of "train".

    Raises:
        UsageError: Babel or num2words is not installed; a locale is unknown, both are the same, or they can write fewer
            than 8 kinds; or `count` is more than there are different phrases.

    Reference: Unicode Common Locale Data Repository, https://cldr.unicode.org.
    """
    for name, value, least in (("count", count, 1), ("held_out", held_out, 0), ("seed", seed, 0)):
        if int(value) != value or value < least:
            raise UsageError(f"{name} must be a whole number of at least {least}. Got {value}.")
    for library in ("babel", "num2words"):
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise UsageError(
                f"The embedded phrases need Babel and num2words, and {library} cannot be imported ({error}): "
                "pip install 'keras-attention[translation]', or give sentences by --data"
            ) from None
    locales = _locale(source_locale), _locale(target_locale)
    if locales[0] == locales[1]:
        raise UsageError(f"source and target are the same locale, {locales[0]}: choose two")
    writers, notes = _writers(locales, seed)
    training_years, held_out_years = _split_years(seed)
    parts = (
        ("train", count, training_years),
        ("validation", held_out, held_out_years),
        ("test", held_out, held_out_years),
    )
    seen = set()
    split = {}
    for number, (name, size, part_years) in enumerate(parts):
        rng = np.random.default_rng([seed, number])
        found = []
        for index, writer in enumerate(writers):
            share = (size + index) // len(writers)  # the shares add up to the size
            found += writer.phrases(share, rng, part_years, seen, training=name == "train")
        order = rng.permutation(len(found))
        sources, targets, kinds = ([found[i][side] for i in order] for side in range(3))
        origin = f"phrases {locales[0]} to {locales[1]} ({name})"
        split[name] = Pairs(sources, targets, kinds, origin=origin, notes=notes if name == "train" else [])
    return split


def _split_years(seed):
    """(training years, held-out years): of each decade one is held out, each time with another last digit.

    So training sees every decade and every digit in every place, and what is new in a held-out year is how they meet.
    """
    from keras_attention.training.translation.phrase_kinds import FIRST_YEAR, LAST_YEAR

    digits = np.random.default_rng(seed).permutation(10).tolist()
    held_out = [decade + digit for decade, digit in zip(range(FIRST_YEAR, LAST_YEAR, 10), digits)]
    return sorted(set(range(FIRST_YEAR, LAST_YEAR + 1)) - set(held_out)), held_out


def _locale(name):
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError):
        raise UsageError(f"unknown locale {name!r}: {_suggestion(name)}") from None


def _suggestion(name):
    """The locale that was probably meant, by its code or by its English or own name."""
    from babel import Locale
    from babel.localedata import exists, locale_identifiers
    from num2words import CONVERTER_CLASSES

    known = {code.lower(): code for code in locale_identifiers()}
    known |= {language.lower(): code for code, language in Locale("en").languages.items() if exists(code)}
    known |= {Locale(code).language_name.lower(): code for code in CONVERTER_CLASSES if len(code) == 2 and exists(code)}
    wanted = name.replace("-", "_").lower()
    near = difflib.get_close_matches(wanted, sorted(known), n=1)
    return f"did you mean {known[near[0]]!r}?" if near else "use a CLDR code such as 'de', 'pt_BR' or 'zh_Hant'"


def _writers(locales, seed):
    """A writer for each kind that both locales can write, and what to tell about the others."""
    from keras_attention.training.translation.phrase_kinds import KINDS, number_language

    writers = [_Writer(kind, locales, seed) for kind in KINDS]
    missing = [writer.kind.name for writer in writers if not writer.forms]
    writers = [writer for writer in writers if writer.forms]
    if not missing:
        return writers, []
    silent = [str(locale) for locale in locales if number_language(locale) is None]
    reason = f"num2words does not speak {' and '.join(silent)}" if silent else "Babel or num2words cannot write them"
    if len(writers) < FEWEST_KINDS:
        raise UsageError(
            f"{locales[0]} to {locales[1]} gives only {len(writers)} kinds of phrase, fewer than {FEWEST_KINDS} "
            f"({', '.join(missing)} missing: {reason}): choose another pair of locales"
        )
    return writers, [f"left out: {', '.join(missing)} ({reason})"]


class _Writer:
    """Writes the phrases of one kind in two locales, with the forms that both have."""

    def __init__(self, kind, locales, seed):
        from keras_attention.training.translation.phrase_kinds import FIRST_YEAR, LAST_YEAR

        self.kind, self.locales, self.seed = kind, locales, seed
        rng = np.random.default_rng(0)
        probes = [kind.draw(rng, range(FIRST_YEAR, LAST_YEAR + 1)) for _ in range(_PROBES)]
        self.forms = []  # (form, its rivals: earlier forms that some values make it look like)
        written = []
        for form in kind.forms:
            pairs = [self._write(form, value) for value in probes]
            if pairs.count(None) > _PROBES // 2:
                continue
            # The English long date in May looks like the medium one, whose German is another: such values are passed
            # over, and a form that always looks like another is left out.
            clashes = [[self._clash(*both) for both in zip(pairs, earlier) if both[0]] for earlier in written]
            if any(map(all, clashes)):
                continue
            self.forms.append((form, [self.forms[i][0] for i, clash in enumerate(clashes) if any(clash)]))
            written.append(pairs)

    def phrases(self, count, rng, years, seen, *, training):
        """`count` phrases (source, target, kind) whose sources are not in `seen`; adds them to it."""
        found = []
        for _ in range(60 * count + 1000):
            if len(found) == count:
                return found
            value = self.kind.draw(rng, years)
            form, rivals = self.forms[rng.integers(len(self.forms))]
            pair = self._write(form, value)
            if pair is None or any(self._clash(pair, self._write(rival, value)) for rival in rivals):
                continue
            key = normalized(pair[0])
            if key in seen or not (self.kind.dated or (hash_place(key, self.seed) < _HELD_OUT_SHARE) != training):
                continue
            seen.add(key)
            found.append((*pair, self.kind.name))
        raise UsageError(
            f"there are not {count} different phrases of kind {self.kind.name!r} left: ask for fewer pairs"
        )

    @staticmethod
    def _clash(pair, other):
        """Whether one source would have two targets."""
        return other is not None and pair[0] == other[0] and pair[1] != other[1]

    def _write(self, form, value):
        """(source, target) of a value, or None where a locale cannot write it."""
        try:
            source, target = (_clean(form(value, locale)) for locale in self.locales)
        except Exception:  # num2words' languages fail in their own ways: NotImplementedError, KeyError, OverflowError
            return None
        return (source, target) if source and target else None


def _clean(text):
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
    return " ".join(text.split())
