"""Classifies a column that is neither label nor time: category, number, several values, weight, or useless.

Each rule is a small function that returns a guess with its reason, or None. The first rule that applies decides.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gearshift.data.columns import TextColumn
from gearshift.data.infer.profile import (
    SEPARATORS,
    STRONG_SEPARATORS,
    Parts,
    Profile,
    plain_name,
    split_parts,
)
from gearshift.data.readers.sniff import is_number
from gearshift.data.schema import Bag, Categorical, Feature, Numeric, Sequence, Vector

Role = Literal["label", "time", "weight", "feature", "ignored"]
ID_NAME = re.compile(
    r"(^|_|\b)(id|ids|uid|uuid|guid|key|code|hash|sku|asin|zip|zipcode|ip|token)($|_|\b)|(?-i:[a-z]I[dD]$)|"
    r"(user|item|ad|product|session|device|customer|movie|query|doc|request|campaign|store|shop)id$",
    re.IGNORECASE,
)
CODE_NAME = re.compile(
    r"(^|_)(type|category|cat|class|device|os|browser|hour|day|weekday|dow|month|pos|position|slot|level|gender|"
    r"country|city|region|state|brand|cluster|segment|store|shop|channel|campaign|creative|ad|item|user)s?$",
    re.IGNORECASE,
)
QUANTITY_NAME = re.compile(
    r"(^|_)(price|age|count|cnt|num|number|n|amount|qty|quantity|duration|length|len|size|score|rate|ratio|avg|"
    r"mean|sum|total|days|hours|minutes|seconds|income|salary|bid|cost|dist|distance|ctr|views|clicks|revenue|"
    r"impressions|rating|height|width|year|balance|freq|frequency|I\d+|pct|percent|value|spend|spent|sales|"
    r"latency|ms)($|_)",
    re.IGNORECASE,
)
AMOUNT_NAME = re.compile(r"(n|nb|num|cnt|count|avg|mean|sum|total|max|min)_", re.IGNORECASE)
SEQUENCE_NAME = re.compile(
    r"hist|recent|last|prev|past|seq|viewed|visited|session_items|clicked_items|bought", re.IGNORECASE
)
WEIGHT_NAME = re.compile(
    r"^(weight|(sample|instance|example|row|importance)_?weights?|importance)$", re.IGNORECASE
)

_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
FOREIGN_DATE = re.compile(
    rf"\s*([a-z]{{3}},? )?(\d{{1,2}}[/-]\d{{1,2}}[/-](\d{{4}}|\d{{2}})|\d{{1,2}}[ .-]*{_MONTH}[ .,-]*\d{{2,4}}|"
    rf"{_MONTH}[ .-]+\d{{1,2}},?( \d{{4}}| \d{{1,2}}:\d\d))($|[ T,:])",
    re.IGNORECASE,
)
AMOUNT = re.compile(
    r"\s*-?([$€£¥₹]|(USD|EUR|GBP|JPY) ?) ?-?\d[\d., ]*$|\s*-?\d[\d., ]*([$€£¥₹%]| ?(USD|EUR|GBP|JPY))$|"
    r"\s*-?\d{1,3}(,\d{3})*\.\d+$"
)
LEADING_ZERO = re.compile(r"-?0\d")
WITH_UNIT = re.compile(r"\s*[-+]?\d+([.,]\d+)* ?([A-Za-z\u00b0\u00b5]{1,4})\.?\s*")
SPACES = "\u00a0\u2009\u202f"
UNREAD_NUMBERS = (  # notations of numbers that are not supported, and what to write instead
    (re.compile(r"[-+]?\d{1,3}(['\u2019]\d{3})+([.,]\d+)?"), "an apostrophe between thousands", "without it"),
    (re.compile(rf"[-+]?\d{{1,3}}([{SPACES}]\d{{3}})+([.,]\d+)?"), "a space between thousands", "without it"),
    (re.compile(r"[\u2212\u2012\u2013]\d[\d.,]*"), "a dash instead of a minus", "with the character -"),
    (re.compile(r"\(\d[\d.,]*\)"), "parentheses instead of a minus", "with - before the number"),
    (re.compile(r"\d[\d.,]*-"), "the minus after the number", "with - before the number"),
)
MOSTLY_UNREAD = 0.5  # share of examples that look like numbers in an unsupported notation
FEW_WORDS = 10  # distinct words that may stand for a missing number
MOSTLY_NUMBERS = 0.9  # share of examples; the others are errors, or words for missing values
SHOWN_VALUES = 200  # number of most frequent values that are examined


@dataclass(frozen=True)
class ColumnGuess:
    """The inferred role of a column, and the reason; `feature` is set if it is a feature."""

    column: str
    guess: str
    why: str
    role: Role
    feature: Feature | None = None
    left_out: Feature | None = None  # the feature that was left out because it is a leak
    suspicion: str | None = None  # a warning about it


def guess_column(profile: Profile) -> ColumnGuess:
    """Classify a column that is neither label nor time."""
    for rule in RULES:
        guess = rule(profile)
        if guess is not None:
            return guess
    unread = _why_no_number(profile)
    return _category(profile, f"{profile.distinct:,} distinct" + (f"; {unread}" if unread else ""))


def _why_no_number(profile: Profile) -> str | None:
    """The reason why a mostly numeric column is not numeric; None if it is not mostly numeric."""
    if profile.numbers is not None:
        zeros = next((value for value in profile.values if LEADING_ZERO.match(value)), None)
        return None if zeros is None else f"{zeros[:20]!r} has a leading zero: identifiers, not amounts"
    if profile.endless and profile.endless == int(profile.counts.sum()):
        return "all infinite, no number to learn from"
    words = {value for value in profile.values if not is_number(value)}
    written = _why_unread(profile, words)
    if written is not None:
        return written
    if not words or _share(profile, words) > 1 - MOSTLY_NUMBERS:
        return _why_no_amount(profile) or _why_words(profile, words)
    i, text = next((i, text) for i, text in enumerate(profile.texts()) if text in words)
    place, others = profile.place(i), len(words) - 1
    more = f" and {others:,} more word{'s' * (others > 1)}" if others else ""
    them, these = ("them", "these values") if more else ("it", "this value")
    null = f", or list {them} in data.csv.null as missing" if isinstance(profile.column, TextColumn) else ""
    where = f"{place.unit} {place.number:,}"
    return f"numbers except {str(text)[:20]!r} in {where}{more}; to make the column numeric, correct {these}{null}"


def _why_unread(profile: Profile, words: set[str]) -> str | None:
    """Why numbers such as 180'700 or (8.47), formatted for human readers, were not read; None if there are none."""
    forms = {
        value: form
        for value in words
        for form in UNREAD_NUMBERS
        if form[0].fullmatch(value.strip()) is not None
    }
    if not forms or ID_NAME.search(profile.name):
        return None
    others = words - forms.keys()
    if _share(profile, others) > 1 - MOSTLY_NUMBERS:
        return None
    shown = next(value for value in profile.values if value in forms)
    _, how, instead = forms[shown]
    return (
        f"most values look like numbers, but {shown[:20]!r} has {how} and cannot be read; to make "
        f"the column numeric, write such values {instead}"
    )


def _why_words(profile: Profile, words: set[str]) -> str | None:
    """Many different numbers and a few frequent words, which seem to mean a missing value."""
    numbers = profile.distinct - len(words)
    few = 0 < len(words) <= FEW_WORDS < numbers
    if not few or ID_NAME.search(profile.name) or _share(profile, words) > 1 - MOSTLY_UNREAD:
        return None
    shown = ", ".join(repr(value[:20]) for value in profile.values if value in words)
    null = "list them in data.csv.null" if isinstance(profile.column, TextColumn) else "leave them empty"
    return f"most values are numbers, the others are {shown}; if these mean missing, {null} to make the column numeric"


def _why_no_amount(profile: Profile) -> str | None:
    """12.5 kg, 80 kg: every number is followed by the same unit."""
    units = {match[2] for value in profile.values if (match := WITH_UNIT.fullmatch(value))}
    behind = {value for value in profile.values if WITH_UNIT.fullmatch(value)}
    if len(units) != 1 or ID_NAME.search(profile.name) or _share(profile, behind) < MOSTLY_NUMBERS:
        return None
    return f"numbers with a unit, like {profile.values[0][:20]!r}, cannot be read; write the number alone"


def _share(profile: Profile, values: set[str]) -> float:
    """The share of the examples with a value that have one of `values`."""
    counts = zip(profile.values, profile.counts.tolist(), strict=True)
    return float(sum(count for value, count in counts if value in values) / max(int(profile.counts.sum()), 1))


def ignored(profile: Profile, why: str) -> ColumnGuess:
    return ColumnGuess(profile.name, "ignored", why, "ignored")


def _category(profile: Profile, why: str) -> ColumnGuess:
    missing = f", {_percent(profile.missing_share)} missing" if profile.missing else ""
    return ColumnGuess(profile.name, "categorical", why + missing, "feature", Categorical(profile.name))


def _useless(profile: Profile) -> ColumnGuess | None:
    if profile.missing == profile.examples:
        return ignored(profile, "no value in the sample")
    if profile.distinct == 1 and not profile.missing and profile.examples > 1:
        return ignored(profile, f"always {profile.values[0][:40]!r}")
    return None


def _weight(profile: Profile) -> ColumnGuess | None:
    if not WEIGHT_NAME.search(profile.name) or profile.numbers is None or profile.missing:
        return None
    low, high = profile.quantity.min(), profile.quantity.max()
    if low < 0 or (profile.name.lower() == "weight" and high > 100):
        return None
    why = f"by its name, {low:g}..{high:g}; if it is a quantity, make it numeric"
    return ColumnGuess(profile.name, "weight of the example", why, "weight")


def _nested(profile: Profile) -> ColumnGuess | None:
    if profile.nesting in (None, "lists"):
        return None
    return ignored(profile, f"holds {profile.nesting}, which no feature type supports")


def _list_column(profile: Profile) -> ColumnGuess | None:
    if not profile.is_list:
        return None
    size = profile.list_of_floats
    if size is not None:
        return ColumnGuess(
            profile.name,
            f"vector of {size}",
            "lists of equally many floats",
            "feature",
            Vector(profile.name, size),
        )
    kind = Sequence if SEQUENCE_NAME.search(profile.name) else Bag
    return ColumnGuess(
        profile.name, kind.__name__.lower(), "a column of lists", "feature", kind(profile.name)
    )


def _all_match(pattern: re.Pattern[str], profile: Profile) -> bool:
    return bool(profile.values) and all(pattern.match(value) for value in profile.values[:SHOWN_VALUES])


def _foreign_date(profile: Profile) -> ColumnGuess | None:
    """11/02/2026, 1-Nov-2026, Nov 1, 2026: ambiguous or unsupported dates, which the user has to convert."""
    if not _all_match(FOREIGN_DATE, profile):
        return None
    shown = profile.values[0][:25]
    why = f"{shown!r} looks like a date in an unsupported format; convert it to ISO (2026-11-30 10:00)"
    return ignored(profile, why)


def _amount_in_words(profile: Profile) -> ColumnGuess | None:
    """$1,533.41: a number in a notation that is not supported."""
    if profile.numbers is not None or not _all_match(AMOUNT, profile):
        return None
    shown = profile.values[0].strip()
    instead = f"{shown[:-1].strip()} without the sign" if shown.endswith("%") else "1533.41"
    why = f"an amount like {profile.values[0][:20]!r} cannot be read as a number; write {instead}"
    many = profile.distinct > 0.5 * (profile.examples - profile.missing)
    return ignored(profile, why) if many else _category(profile, f"{profile.distinct:,} distinct; {why}")


def _vector(profile: Profile) -> ColumnGuess | None:
    """Equally many numbers in each value, most of them with a fraction."""
    start = profile.values[:SHOWN_VALUES]
    if profile.numbers is not None or profile.times is not None or not start:
        return None
    for separator in SEPARATORS:
        parts = [split_parts(value, separator) for value in start]
        size, flat = len(parts[0]), [part for pieces in parts for part in pieces]
        numbers = size > 1 and all(len(pieces) == size for pieces in parts) and all(map(is_number, flat))
        if numbers and sum("." in part for part in flat) > 0.5 * len(flat):
            vector = Vector(profile.name, size, separator)
            kind = f"vector of {size}, separator {separator!r}"
            return ColumnGuess(profile.name, kind, "equally many numbers in each value", "feature", vector)
    return None


def _separated(profile: Profile) -> ColumnGuess | None:
    """Several values in one text, joined by a separator."""
    if profile.numbers is not None or profile.times is not None:
        return None
    present = [s for s in SEPARATORS if any(s in value for value in profile.values)]
    parts = next((p for p in map(profile.parts, present) if _is_list_of(profile, p)), None)
    if parts is None:
        return None
    span = f"{parts.fewest}-{parts.most}" if parts.fewest != parts.most else f"{parts.most}"
    why = f"{span} parts, {len(parts.counts):,} distinct parts"
    if SEQUENCE_NAME.search(profile.name):
        sequence = Sequence(profile.name, parts.separator)
        return ColumnGuess(
            profile.name,
            f"sequence, separator {parts.separator!r}",
            f"{why}, and the name suggests a history",
            "feature",
            sequence,
        )
    bag = Bag(profile.name, parts.separator)
    return ColumnGuess(profile.name, f"bag, separator {parts.separator!r}", why, "feature", bag)


def _is_list_of(profile: Profile, parts: Parts) -> bool:
    """Whether parts recur in other values and are fewer than the values. A weak separator needs stronger evidence."""
    if parts.share < 0.1 or parts.most < 2 or any(len(part) > 40 for part in parts.counts):
        return False
    if parts.separator in STRONG_SEPARATORS:
        return len(parts.counts) < max(profile.distinct, 4) or SEQUENCE_NAME.search(profile.name) is not None
    recur = sum(parts.counts.values()) / len(parts.counts)
    same_size = parts.fewest == parts.most
    plain = all(re.fullmatch(r"[\w.:-]+", part) for part in parts.counts)
    if parts.separator == "," and profile.values[0].startswith("[") and plain:
        return True  # a printed list
    if parts.mobile < 0.5:  # a street and its number: words in a fixed order, not a list
        return False
    return plain and not same_size and recur >= 3 and profile.distinct > 1.5 * len(parts.counts)


def _unique(profile: Profile) -> ColumnGuess | None:
    """A value that is unique to each example carries no information about other examples."""
    if profile.distinct < profile.examples - profile.missing or profile.examples < 20:
        return None
    if profile.numbers is not None:
        steps = np.diff(profile.numbers)
        counts_up = profile.is_whole and bool((np.abs(steps) == 1).all())
        if not counts_up and not (profile.is_whole and ID_NAME.search(profile.name)):
            return None
        return ignored(profile, "a line number" if counts_up else "one value per example")
    unread = _why_unread(profile, {value for value in profile.values if not is_number(value)})
    return ignored(profile, "one value per example" + (f"; {unread}" if unread else ""))


def _number(profile: Profile) -> ColumnGuess | None:
    if profile.numbers is None or any(map(LEADING_ZERO.match, profile.values)):
        return None
    if profile.is_whole:
        not_a_quantity = _why_no_quantity(profile)
        if not_a_quantity is not None:
            return _category(
                profile, f"{profile.distinct:,} distinct, integers but not a quantity ({not_a_quantity})"
            )
    return _quantity(profile)


def _why_no_quantity(profile: Profile) -> str | None:
    """The reason why integers are identifiers rather than amounts; None if they seem to be amounts."""
    name, values = profile.name, profile.quantity
    if AMOUNT_NAME.match(name):
        return None
    if ID_NAME.search(name) or CODE_NAME.search(name):
        return "by its name"
    if profile.distinct <= 2:
        return "two values"
    if QUANTITY_NAME.search(name):
        return None
    if profile.distinct <= 200 and len(values) >= 20 * profile.distinct:
        return "few values, each frequent"
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    if profile.distinct > 200 and not (low < 0.05 * high and middle < 0.25 * high) and high > 1000:
        return "spread evenly up to " + f"{high:,.0f}"
    return None


def _quantity(profile: Profile) -> ColumnGuess:
    values = profile.quantity
    missing = f", {_percent(profile.missing_share)} missing" if profile.missing else ""
    if profile.endless:
        missing += f", {profile.endless:,} infinite: bad lines, see data.bad_lines"
    fill: Literal["mean", "zero"] = "mean" if profile.missing or np.isnan(profile.numbers).any() else "zero"  # type: ignore[arg-type]
    low, high = float(values.min()), float(values.max())
    if abs(profile.skew) > 2 and high - low > 10:
        feature = Numeric(profile.name, "log1p", fill)
        return ColumnGuess(
            profile.name, "numeric, log1p", f"skew {profile.skew:.1f}{missing}", "feature", feature
        )
    why = f"{low:g}..{high:g}{missing}"
    if max(abs(low), abs(high)) <= 3:
        return ColumnGuess(profile.name, "numeric", why, "feature", Numeric(profile.name, "none", fill))
    return ColumnGuess(
        profile.name, "numeric, standardize", why, "feature", Numeric(profile.name, "standardize", fill)
    )


def _free_text(profile: Profile) -> ColumnGuess | None:
    sizes = np.array([len(value) for value in profile.values])
    if profile.distinct > 0.5 * profile.examples and sizes.mean() > 60:
        return ignored(profile, f"free text, {sizes.mean():.0f} characters on average")
    return None


RULES = (
    *(_useless, _weight, _nested, _list_column, _foreign_date, _amount_in_words, _vector, _separated),
    *(_unique, _number, _free_text),
)


def without_nearly_unique(guesses: list[ColumnGuess], profiles: list[Profile]) -> list[ColumnGuess]:
    """Leave out categories that rarely recur, except ids and columns that share their rows with a history."""
    shared = {g.feature.share_embedding for g in guesses if isinstance(g.feature, Bag | Sequence)}

    def checked(guess: ColumnGuess, profile: Profile) -> ColumnGuess:
        present = profile.examples - profile.missing
        rare = profile.distinct > 0.9 * present and present >= 200
        is_id = ID_NAME.search(guess.column) is not None or guess.column in shared
        if not isinstance(guess.feature, Categorical) or not rare or is_id:
            return guess
        reason = guess.why.partition("; ")[2]
        why = f"{profile.distinct:,} distinct in {present:,} examples: few of them recur"
        return ignored(profile, f"{why}; {reason}" if reason else why)

    return [checked(guess, profile) for guess, profile in zip(guesses, profiles, strict=True)]


def share_embedding(guess: ColumnGuess, guesses: list[ColumnGuess], profiles: list[Profile]) -> ColumnGuess:
    """A bag or sequence whose parts are values of an id column is a history of that column: they share rows."""
    feature = guess.feature
    by_name = {profile.name: profile for profile in profiles}
    if not isinstance(feature, Bag | Sequence) or by_name[guess.column].is_list:
        return guess
    parts = by_name[guess.column].parts(feature.separator).counts
    others = [g.column for g in guesses if isinstance(g.feature, Categorical)]
    best = max(others, key=lambda name: _overlap(guess.column, parts, by_name[name]), default=None)
    share = 0.0 if best is None else _overlap(guess.column, parts, by_name[best])
    if best is None or share < 0.5:
        return guess
    sequence = Sequence(guess.column, feature.separator, share_embedding=best)
    why = f"parts overlap {best} by {_percent(share)}: shares its embedding"
    return replace(guess, guess=f"sequence, separator {feature.separator!r}", why=why, feature=sequence)


def _overlap(name: str, parts: Counter[str], other: Profile) -> float:
    """The share of the parts that are values of another column; 0 if this may be coincidence.

    Many columns contain small integers. They count only if they also cover the other column, or if the names have a
    word in common (recent_items, item_id).
    """
    known = set(other.values)
    common = [part for part in parts if part in known]
    if other.numbers is not None and not _share_a_word(name, other.name) and len(common) < 0.5 * len(known):
        return 0.0
    return sum(parts[part] for part in common) / max(sum(parts.values()), 1) if len(known) > 2 else 0.0


def _share_a_word(a: str, b: str) -> bool:
    first, second = (
        {word.rstrip("s") for word in re.split(r"[\W_]+", plain_name(name))} - {"id", "list", "hist"}
        for name in (a, b)
    )
    return bool(first & second)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"
