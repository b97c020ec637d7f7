"""The kinds of phrase of the embedded corpus: which values they draw and how a locale writes them.

A kind has one or more forms; a form writes a value in any locale. A phrase pair is one value in one form, written in
two locales, so its source fixes its target. Wording, order and punctuation are CLDR's (through Babel) and num2words'.
"""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from babel import dates, lists, numbers, units
from num2words import CONVERTER_CLASSES, num2words

FIRST_YEAR, LAST_YEAR = 1960, 2059  # a hundred: two digits tell the year

CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "CAD", "AUD", "INR")
# fmt: off
UNITS = (
    "length-kilometer", "length-meter", "length-centimeter", "length-mile", "length-foot", "mass-kilogram",
    "mass-gram", "mass-pound", "volume-liter", "volume-milliliter", "temperature-celsius",
    "temperature-fahrenheit", "area-hectare", "speed-kilometer-per-hour", "energy-kilowatt-hour",
    "power-kilowatt", "power-watt", "electric-volt", "digital-megabyte", "digital-gigabyte", "frequency-hertz",
)
TERRITORIES = (
    "AT", "AU", "BE", "BR", "CA", "CH", "CN", "CZ", "DE", "DK", "EG", "ES", "FI", "FR", "GB", "GR", "HU", "IE",
    "IN", "IS", "IT", "JP", "KR", "MX", "NL", "NO", "PL", "PT", "RO", "SE", "TR", "UA", "US", "ZA",
)
LANGUAGES = (
    "ar", "cs", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "hu", "it", "ja", "ko", "nl", "pl", "pt",
    "ru", "sv", "tr", "zh",
)
# fmt: on
# Each unit with how many of it are still said, and the next smaller unit beside it.
DURATIONS = (
    ("year", 40, "month", 11),
    ("week", 12, "day", 6),
    ("day", 60, "hour", 23),
    ("hour", 99, "minute", 59),
    ("minute", 99, "second", 59),
)
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "year": 31_536_000}


@dataclass(frozen=True)
class Kind:
    """A kind of phrase.

    Attributes:
        name: Its name in reports.
        draw: `draw(rng, years)` gives a value; only the given years occur in it.
        forms: Functions `form(value, locale) -> str`; what raises an exception for a value cannot be written.
        dated: Whether its phrases show the year.
    """

    name: str
    draw: Callable
    forms: tuple
    dated: bool = False


def number_language(locale):
    """What num2words calls the language of a `babel.Locale`; None when it does not speak it."""
    language = {"kk": "kz", "nb": "no"}.get(locale.language, locale.language)
    for name in (f"{language}_{locale.territory}", language):
        if name in CONVERTER_CLASSES:
            return name
    return None


def _digits(rng, most):
    """A whole number whose number of digits is uniform from 1 to `most`: short numbers are as common as long ones."""
    count = rng.integers(1, most + 1)
    return int(rng.integers(10 ** (count - 1), 10**count))


def _moment(rng, years):
    """A time of day on a day of one of the years."""
    day = datetime.datetime(years[rng.integers(len(years))], 1, 1) + datetime.timedelta(days=int(rng.integers(365)))
    return day + datetime.timedelta(seconds=int(rng.integers(86_400)))


def _draw_span(rng, years):
    """Two days, both in the given years: half of the time close together, else in different months."""
    while True:
        start = _moment(rng, years).date()
        days = rng.integers(1, 25) if rng.random() < 0.5 else rng.integers(25, 400)
        end = start + datetime.timedelta(days=int(days))
        if end.year in years:
            return start, end


def _draw_money(rng, years):
    return _digits(rng, 4) + int(rng.integers(100)) / 100, CURRENCIES[rng.integers(len(CURRENCIES))]


def _draw_measure(rng, years):
    amount = _digits(rng, 3)
    amount = amount if rng.random() < 0.5 else amount + int(rng.integers(1, 10)) / 10
    return amount, UNITS[rng.integers(len(UNITS))]


def _draw_duration(rng, years):
    large, most, small, most_small = DURATIONS[rng.integers(len(DURATIONS))]
    return (int(rng.integers(1, most + 1)), large), (int(rng.integers(1, most_small + 1)), small)


def _draw_names(rng, years):
    count = int(rng.integers(2, 5))
    territories = tuple(map(str, rng.choice(TERRITORIES, count, replace=False)))
    return territories, tuple(map(str, rng.choice(LANGUAGES, count, replace=False)))


def _draw_number(rng, years):
    return _digits(rng, 7), int(rng.integers(0, 100)) / 100


def _draw_small(rng, years):
    """Up to four digits; those of three and four take most of the share, as there are more of them."""
    count = rng.choice([1, 2, 3, 4], p=[0.02, 0.08, 0.4, 0.5])
    return int(rng.integers(10 ** (count - 1), 10**count))


def _date(value, locale, format):
    return dates.format_date(value, format, locale=locale)


def _skeleton(value, locale, skeleton):
    return dates.format_skeleton(skeleton, value, locale=locale)


def _time(value, locale, format):
    return dates.format_time(value, format, locale=locale)


def _datetime(value, locale, format):
    return dates.format_datetime(value, format, locale=locale)


def _days(value, locale):
    return dates.format_interval(*value, "yMMMd", locale=locale)


def _months(value, locale):
    start, end = value
    if (start.year, start.month) == (end.year, end.month):
        raise ValueError("no span of months")
    return dates.format_interval(start, end, "yMMMM", locale=locale)


def _money(value, locale, format_type):
    return numbers.format_currency(*value, format_type=format_type, locale=locale)


def _measure(value, locale, length):
    return units.format_unit(*value, length=length, locale=locale)


def _duration(value, locale):
    parts = [units.format_unit(count, f"duration-{unit}", length="long", locale=locale) for count, unit in value]
    return lists.format_list(parts, locale=locale)


def _relative(value, locale, sign):
    """The larger part alone, before or after now."""
    count, unit = value[0]
    difference = datetime.timedelta(seconds=sign * count * SECONDS[unit])
    # The threshold keeps the unit: 90 minutes stay minutes.
    return dates.format_timedelta(difference, granularity=unit, threshold=1e9, add_direction=True, locale=locale)


def _territories(value, locale, style):
    return lists.format_list([locale.territories[code] for code in value[0]], style=style, locale=locale)


def _languages(value, locale, style):
    return lists.format_list([locale.languages[code] for code in value[1]], style=style, locale=locale)


def _whole(value, locale):
    return numbers.format_decimal(value[0], locale=locale)


def _decimal(value, locale):
    return numbers.format_decimal(value[0] + value[1], locale=locale)


def _compact(value, locale):
    """Two leading digits with the word for thousand, million or billion."""
    amount = float(f"{value[0]:.2g}") * 1000
    return numbers.format_compact_decimal(amount, format_type="long", fraction_digits=1, locale=locale)


def _percent(value, locale):
    return numbers.format_percent(value, locale=locale, decimal_quantization=False)


def _words(value, locale, to):
    return str(num2words(value, lang=number_language(locale), to=to))


KINDS = (
    Kind(
        "date",
        _moment,
        (
            *(partial(_date, format=format) for format in ("short", "medium", "long", "full")),
            *(partial(_skeleton, skeleton=skeleton) for skeleton in ("yMMMEd", "yMMMM", "yQQQQ")),
        ),
        dated=True,
    ),
    Kind(
        "date and time", _moment, tuple(partial(_datetime, format=format) for format in ("short", "medium")), dated=True
    ),
    Kind("time", _moment, tuple(partial(_time, format=format) for format in ("short", "medium"))),
    Kind("span", _draw_span, (_days, _months), dated=True),
    Kind("money", _draw_money, tuple(partial(_money, format_type=format_type) for format_type in ("standard", "name"))),
    Kind("measure", _draw_measure, tuple(partial(_measure, length=length) for length in ("long", "short"))),
    Kind("duration", _draw_duration, (_duration, partial(_relative, sign=1), partial(_relative, sign=-1))),
    Kind(
        "list",
        _draw_names,
        (*(partial(form, style=style) for form in (_territories, _languages) for style in ("standard", "or")),),
    ),
    Kind("number", _draw_number, (_whole, _decimal, _compact)),
    Kind("percent", lambda rng, years: int(rng.integers(1, 10 ** rng.integers(3, 6))) / 10_000, (_percent,)),
    Kind("number words", _draw_small, (partial(_words, to="cardinal"),)),
    Kind("ordinal", _draw_small, (partial(_words, to="ordinal"), partial(_words, to="ordinal_num"))),
)
