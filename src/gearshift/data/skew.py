"""Detects columns that are written differently than in training. A model would silently misread their values.

A file that went through pandas or a spreadsheet may have lost leading zeros ("007" became 7), gained a ".0" (ids next
to missing values), or have True instead of 1. Two samples are compared by their spellings (`value_forms.py`): values
are skewed if a spelling of the training data has disappeared and a new one has appeared. A different number of digits
alone is not a sign of skew, because ids grow.

A `SkewWatch` stops checking a column once it has seen enough of its examples.
"""

from __future__ import annotations

from collections import Counter

from gearshift.data.examples import Examples, RawExamples
from gearshift.data.readers.tables import TableSource
from gearshift.data.schema import Feature, Form
from gearshift.data.value_forms import (
    TEXT,
    forms_of,
    kind_of,
    merged,
    observable,
    observed_forms,
    raw_examples,
)

ENOUGH_EXAMPLES = (
    200  # examples before a column of tables is judged: enough to notice the loss of a 3.5 % spelling
)
RARE = 1e-3  # a spelling has disappeared if its absence is less likely than this
EXACT_DIGITS = 15  # longer integers may be rounded when stored as floats
NUMBERS = ("integers", "floats")


def remarks(examples: Examples, trained: tuple[Form, ...]) -> dict[str, str]:
    """A message with advice for each column that is absent, or that the model would misread."""
    source = raw_examples(examples)
    if source is None:
        return {}
    messages = _absences(source)
    return messages | differences(trained, observed_forms(examples), source.where) if trained else messages


class SkewWatch:
    """Checks all data that one model receives. A column is checked until enough of its examples were seen.

    Tables are small parts of one stream, so they are judged together, per column and kind of value: a column that
    changes from text to integers is checked again. Each file is judged separately and at once.
    """

    def __init__(self) -> None:
        self._where = ""
        self._seen: dict[
            tuple[str, str], tuple[int, Form]
        ] = {}  # (column, kind): number of examples, and their form

    def remarks(self, examples: Examples, trained: tuple[Form, ...]) -> dict[str, str]:
        """Like the function `remarks`, for the columns that are not judged yet."""
        source = raw_examples(examples)
        if source is None:
            return {}
        if source.where != self._where:
            self._where, self._seen = source.where, {}
        messages = _absences(source)
        if trained and (features := self._unjudged(source)):
            messages |= differences(trained, self._with_earlier(source, features), source.where)
        return messages

    def _unjudged(self, source: RawExamples) -> list[Feature]:
        kinds = _kinds(source)
        return [f for f in observable(source) if not self._is_judged(f.name, kinds.get(f.name, ""))]

    def _is_judged(self, column: str, kind: str) -> bool:
        seen = self._seen.get((column, kind))
        return seen is not None and seen[0] >= ENOUGH_EXAMPLES

    def _with_earlier(self, source: RawExamples, features: list[Feature]) -> tuple[Form, ...]:
        """The forms of these features, in this data and earlier data."""
        kinds, forms = _kinds(source), []
        count = source.count() if kinds else None
        for form in forms_of(source, features):
            key = (form.column, kinds.get(form.column, ""))
            before, known = self._seen.get(key, (0, None))
            now = form if known is None else merged(known, form)
            self._seen[key] = (before + (ENOUGH_EXAMPLES if count is None else count), now)
            forms.append(now)
        return tuple(forms)


def _kinds(source: RawExamples) -> dict[str, str]:
    """The kind of each column, without reading values; empty for files, which are judged as a whole."""
    table = source.source
    return (
        {field.name: kind_of(field.type) for field in table.schema} if isinstance(table, TableSource) else {}
    )


def _absences(source: RawExamples) -> dict[str, str]:
    return {
        name: f"{source.where} has no column `{name}`: it counts as missing in every example."
        for name in source.absent
    }


def differences(trained: tuple[Form, ...], given: tuple[Form, ...], where: str) -> dict[str, str]:
    """A message for each column that is written differently in `given`."""
    before = {form.column: form for form in trained}
    pairs = [(before[form.column], form) for form in given if form.column in before]
    messages = {now.column: difference(was, now, where) for was, now in pairs}
    return {column: sentence for column, sentence in messages.items() if sentence is not None}


def difference(was: Form, now: Form, where: str) -> str | None:
    """How a column changed, with advice; None if the model still reads its values correctly."""
    if not was.spellings and not now.spellings:
        kinds = {was.kind, now.kind}
        if "times" not in kinds or not kinds & set(NUMBERS):
            return None
        return _sentence(now, where, was.kind, now.kind, f"give it as {was.kind}; times are in seconds")
    if _rounded(was, now):
        fix = f'keep it an integer, in pandas with dtype={{"{now.column}": "Int64"}}'
        return _sentence(now, where, f"{was.kind} of many digits", f"{now.kind}; floats round them", fix)
    if (changed := _changed(was, now)) is None:
        return None
    lost, new = changed
    return _sentence(now, where, _example(was, lost), _example(now, new), _fix(was, now, lost, new))


def _changed(was: Form, now: Form) -> tuple[str, str] | None:
    """(a spelling that disappeared, a new one), choosing the most frequent ones."""
    before, after = dict(was.spellings), dict(now.spellings)
    lost, new = _missing(was, now), _missing(now, was)
    padded = [name for name in before if _family(name) == "padded"]
    if padded and now.kind in NUMBERS and now.values:  # numbers have no leading zeros
        lost, new = padded, new or list(after) or ["integer:1"]
    pairs = [(x, y) for x in lost for y in new if _family(x) != _family(y) or _family(x) == "time"]
    return max(pairs, key=lambda pair: (before[pair[0]], after.get(pair[1], 0)), default=None)


def _missing(one: Form, other: Form) -> list[str]:
    """Spellings of one sample whose absence in the other sample is not due to chance."""
    known = {name for name, _ in other.spellings}
    families = {_family(name) for name in known}
    of_family: Counter[str] = Counter()
    for name, count in one.spellings:
        of_family[_family(name)] += count
    missing = []
    for name, count in one.spellings:
        seen = count if _family(name) in families else of_family[_family(name)]
        certain = other.kind != TEXT and other.values > 0  # numbers and booleans are written in one way only
        if name not in known and (certain or (1.0 - seen / one.values) ** other.values < RARE):
            missing.append(name)
    return missing


def _rounded(was: Form, now: Form) -> bool:
    if (was.kind == "floats") == (now.kind == "floats"):
        return False
    names = [name for name, _ in (*was.spellings, *now.spellings) if _family(name) == "integer"]
    return any(int(name.partition(":")[2]) > EXACT_DIGITS for name in names)


def _family(name: str) -> str:
    return name.partition(":")[0]


def _example(form: Form, name: str) -> str:
    """`text like 007`"""
    family, _, rest = name.partition(":")
    if family == "time":
        text = rest.replace("9999-99-99", "2026-11-01").replace("99:99", "10:30").replace("9", "0")
    elif family == "padded":
        text = "7".rjust(int(rest), "0")
    elif family == "integer":
        text = "7.0" if form.kind == "floats" else "1234567890123456789"[: int(rest)]
    else:
        text = {"whole": "7.0"}.get(family, family)
    return f"{form.kind} like {text}"


def _fix(was: Form, now: Form, lost: str, new: str) -> str:
    column, family = now.column, _family(lost)
    if family == "padded":
        return f'read it as text, in pandas with dtype={{"{column}": str}}'
    if family == "integer":
        to = ".astype(int)" if _family(new) in ("true", "True", "TRUE") else '.astype("Int64")'
        return f"give it as whole numbers, in pandas with df[{column!r}]{to}"
    if lost == "True" and now.kind == "booleans":
        return f"give it as text, in pandas with df[{column!r}].astype(str)"
    if was.kind == "booleans":
        return f"give it as booleans, in pandas with df[{column!r}].astype(bool)"
    if was.kind == "times":
        return f"give it as times, in pandas with pd.to_datetime(df[{column!r}])"
    return f"write it as in training, {_example(was, lost).removeprefix(was.kind + ' ')}"


def _sentence(now: Form, where: str, before: str, here: str, fix: str) -> str:
    return (
        f"column `{now.column}` of {where} is written differently than in training ({before} there, {here} here), so "
        f"the model does not recognize its values: {fix}"
    )
