"""The meaning of commas and points in numbers: decimal marks, or separators of thousands.

`3,5` and `0,123` have a decimal comma; `1,234,567` and `1,234.5` have thousands separators. `7,212` is ambiguous.
A column is in doubt if every comma is followed by exactly three digits; other columns of the file may resolve it.
If none does, commas separate thousands (decimals rarely have three digits throughout), points are decimal marks, and
the user gets a warning. If the delimiter is a comma, commas are not decimal marks unless the user says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

MARKS = ",."
LONGEST_GROUPS = 4  # 123,456,789,012; a value with more groups is a list


@dataclass(frozen=True)
class NumberMarks:
    decimal: str
    thousands: str = ""  # "" for none
    doubtful: tuple[int, ...] = ()  # columns that could be read either way


@dataclass(frozen=True)
class _Column:
    """Evidence about one mark in the values of one column."""

    decimals: int = 0  # values in which it can only be a decimal mark
    grouped: int = 0  # values in which it may separate thousands; 0 unless all values allow this
    sure: bool = False  # at least one of them allows no other reading


def find_marks(
    records: Sequence[Sequence[str]], delimiter: str, decimal: str | None, thousands: str | None
) -> NumberMarks:
    """Find the marks from records without the header. Values set by the user (not None) are kept."""
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
    """The marks if no decimal comma was seen; `settled` means that a decimal point was seen."""
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
    )  # `;` is typical of exports with decimal commas


def is_grouped(text: str) -> str:
    """The thousands separator of a number, if it has one: `,` in 1,234."""
    return next((mark for mark in MARKS if _grouping(mark).fullmatch(text.strip())), "")


def grouped_pattern(mark: str) -> str:
    """The pattern of a number with `mark` between thousands. A leading 0 is excluded: 0,237 has a decimal comma."""
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
    # Lists of three-digit ids look the same, except for their first group.
    first_is_short = any(len(match[1]) < 3 for match in groups)
    most = max(len(match[2]) // 4 for match in groups)
    fits = len(groups) + len(below_1000) == len(values) and first_is_short and most < LONGEST_GROUPS
    if not fits:
        return _Column(decimals + (len(groups) if decimals else 0))
    sure = any(len(match[2]) > 4 or match[4] for match in groups)
    return _Column(decimals, len(groups), sure)
