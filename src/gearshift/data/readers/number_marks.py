"""What commas and points in numbers are: decimal marks, or marks that separate thousands.

`3,5` and `0,123` have a decimal comma; `1,234,567` and `1,234.5` separate thousands. `7,212` may be either, so a column
in which every comma stands before exactly three digits is in doubt: other columns of the file may settle it. If none
does, a comma is taken to separate thousands (who writes decimals seldom keeps three digits throughout) and a point as
a decimal mark, and the user is told. Where the delimiter is a comma, it is no decimal mark unless that is stated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

MARKS = ",."
LONGEST_GROUPS = 4  # 123,456,789,012: more are the parts of a list


@dataclass(frozen=True)
class NumberMarks:
    decimal: str
    thousands: str = ""  # "" for none
    doubtful: tuple[int, ...] = ()  # columns that could be read either way


@dataclass(frozen=True)
class _Column:
    """What the values of one column say about one mark."""

    decimals: int = 0  # values that can only have it as a decimal mark
    grouped: int = 0  # values in which it may separate thousands; 0 if that does not fit all of them
    sure: bool = False  # one of them can be nothing else


def find_marks(
    records: Sequence[Sequence[str]], delimiter: str, decimal: str | None, thousands: str | None
) -> NumberMarks:
    """From records without the header; what is stated (not None) is taken."""
    columns = [
        [value.strip() for value in column if value.strip()] for column in zip_longest(*records, fillvalue="")
    ]
    seen = {mark: [_look(column, mark) for column in columns] for mark in MARKS}
    if decimal is None and thousands is not None and thousands != "none":
        decimal = _other(thousands)
    if decimal is not None:
        return NumberMarks(decimal, _thousands(seen, decimal) if thousands is None else _stated(thousands))
    commas, points = (sum(column.decimals for column in seen[mark]) for mark in MARKS)
    if delimiter != "," and commas > points:
        return NumberMarks(",", _thousands(seen, ",") if thousands is None else "")
    if thousands is not None:
        return NumberMarks(".")
    return _undecided(seen, delimiter, settled=points > 0)


def _undecided(seen: dict[str, list[_Column]], delimiter: str, settled: bool) -> NumberMarks:
    """No decimal comma was seen; `settled`: a decimal point was."""
    sure = settled or any(column.sure for column in seen[","])
    commas = [i for i, column in enumerate(seen[","]) if column.grouped]
    if commas:
        return NumberMarks(".", ",", () if sure else tuple(commas))
    points = [i for i, column in enumerate(seen["."]) if column.grouped]
    if settled or delimiter == ",":
        return NumberMarks(".")
    if any(seen["."][i].sure for i in points):
        return NumberMarks(",", ".")
    return NumberMarks(
        ".", "", tuple(points) if delimiter == ";" else ()
    )  # `;` is what exports with decimal commas have


def is_grouped(text: str) -> str:
    """The mark that separates the thousands of a number, if it has one: `,` of 1,234."""
    return next((mark for mark in MARKS if _grouping(mark).fullmatch(text.strip())), "")


def grouped_pattern(mark: str) -> str:
    """A number with its thousands separated by `mark`. None starts with a group of 0: 0,237 has a decimal comma."""
    return rf"[-+]?([1-9][0-9]{{0,2}})(([{mark}][0-9]{{3}})+)([{_other(mark)}][0-9]*)?"


def _stated(thousands: str) -> str:
    return "" if thousands == "none" else thousands


def _other(mark: str) -> str:
    return MARKS.replace(mark, "")


def _grouping(mark: str) -> re.Pattern[str]:
    return re.compile(grouped_pattern(mark))


def _thousands(seen: dict[str, list[_Column]], decimal: str) -> str:
    return _other(decimal) if any(column.grouped for column in seen[_other(decimal)]) else ""


def _look(values: Sequence[str], mark: str) -> _Column:
    if not any(mark in value for value in values):
        return _Column()
    grouping, single = _grouping(mark), re.compile(rf"[-+]?[\d{_other(mark)}]*[{mark}]\d+")
    groups = [match for value in values if (match := grouping.fullmatch(value))]
    decimals = sum(single.fullmatch(value) is not None for value in values if not grouping.fullmatch(value))
    if not groups:
        return _Column(decimals)
    plain = [value for value in values if re.fullmatch(rf"[-+]?\d+([{_other(mark)}]\d*)?", value)]
    below_1000 = [value for value in plain if abs(int(re.split(r"[,.]", value)[0])) < 1000]
    # Lists of ids with three digits look alike, but for their first group.
    first_is_short = any(len(match[1]) < 3 for match in groups)
    most = max(len(match[2]) // 4 for match in groups)
    fits = len(groups) + len(below_1000) == len(values) and first_is_short and most < LONGEST_GROUPS
    if not fits:
        return _Column(decimals + (len(groups) if decimals else 0))
    sure = any(len(match[2]) > 4 or match[4] for match in groups)
    return _Column(decimals, len(groups), sure)
