"""Finds the column with the time of an example: it holds times, and its name or order suggests it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gearshift.data import columns as raw
from gearshift.data.columns import TextColumn
from gearshift.data.infer.feature import FOREIGN_DATE, ID_NAME, QUANTITY_NAME, SHOWN_VALUES
from gearshift.data.infer.profile import EARLIEST, FEW_WITHOUT_TIME, LATEST, Profile, SampleTimes
from gearshift.data.order import is_ascending
from gearshift.data.split import days_in_words, parse_moment
from gearshift.errors import UserError

TIME_NAME = re.compile(
    r"^(ts|t|time|timestamp|date|datetime|day|hour|dt|when|unixtime|epoch)$|time(_?stamp)?$|(_|^)(at|date|ts|hour)$",
    re.IGNORECASE,
)
THIS_CENTURY, SOON = 978_307_200, 2_051_222_400  # 2001 .. 2035
FOLDER_MALUS = 3.0
MOST_WITHOUT_TIME = 0.5  # share of the examples, for a column with the name of a time
LONGEST_LOG = 10 * 365 * 86_400  # seconds
NO_TIME_NAME = re.compile(f"{ID_NAME.pattern}|phone|{QUANTITY_NAME.pattern}", re.IGNORECASE)
# Unsupported times and their descriptions.
UNREAD_TIMES = (
    (re.compile(r"\[?\d{1,2}/[A-Za-z]{3}/\d{4}:\d\d:\d\d:\d\d.*"), "a time in the format of web server logs"),
    (FOREIGN_DATE, "a date in an unsupported format"),
    (
        re.compile(r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[ap]\.?m\.?)?$", re.IGNORECASE),
        "a time of day without its date",
    ),
    (re.compile(r"\d([.,]\d+)?e\+?(0?9|1[0-9])$", re.IGNORECASE), "a number that has lost its last digits"),
)
PLAIN_TIME_NAME = re.compile(
    r"(ts|time_?stamp|date_?time|date|unix_?time|epoch)|.*_(at|date|ts|time_?stamp)", re.IGNORECASE
)
EXCEL_DAYS = (36_526, 54_789)  # 2000 .. 2050, in spreadsheet days
DOTTED_DATE = re.compile(r"\s*(\d{1,2})\.(\d{1,2})\.\d{4}(\D.*)?")


@dataclass(frozen=True)
class FoundTime:
    column: str
    why: str
    warnings: tuple[str, ...] = ()


def find_time(
    profiles: list[Profile],
    stated: str | None,
    where: str,
    label: str,
    folders: Mapping[str, Sequence[str]] = {},
) -> FoundTime | None:
    """The column that the user named, or the one that looks most like the time of an example.

    `folders` has the values of columns that come from folder names (dt=2026-11-01/); the sample may have only one.
    """
    if stated is not None:
        profile = next((p for p in profiles if p.name == stated), None)
        if profile is None:
            names = ", ".join(p.name for p in profiles[:40])
            raise UserError(f"{where} has no column `{stated}`. It has: {names}.")
        times = profile.read_times(MOST_WITHOUT_TIME)
        if times is None:
            raise UserError(f"{where}: {_no_time(profile)}; expected epoch seconds or an ISO date.")
        return _found_time(profile, times)
    scored = [(score, p) for p in profiles if p.name != label and (score := _score(p)) > 0]
    if not scored:
        return _time_of_folders(folders)
    # The date of a folder is always ascending. A time in the file is more precise, even if it is not ascending.
    best = max(scored, key=lambda pair: pair[0] - FOLDER_MALUS * (pair[1].name in folders))[1]
    times = best.read_times(FEW_WITHOUT_TIME)
    assert times is not None
    return _found_time(best, times)


def missed_times(profiles: list[Profile], label: str) -> tuple[str, ...]:
    """Warnings about columns that would be the time of the example if fewer examples lacked one."""
    named = [p for p in profiles if p.name != label and TIME_NAME.search(p.name) and not is_time(p)]
    candidates = [
        (profile, profile.read_times(MOST_WITHOUT_TIME)) for profile in named if _holds_times(profile)
    ]
    return tuple(
        f"{_without(profile, times) if times.without else _odd(profile, times)}, too many for the time of the example; "
        f"if it is, set --time {profile.name} "
        f'(in Python: time="{profile.name}")' + _allowed(times)
        for profile, times in candidates
        if times is not None and (times.without or times.odd)
    )


def _allowed(times: SampleTimes) -> str:
    bad = len(times.without)
    return f", and allow bad lines: data.bad_lines={{skip: {2 * bad}}}" if bad else ""


def _holds_times(profile: Profile) -> bool:
    """Whether a frequent value is a time. Avoids parsing all values of a column of words."""
    start = raw.plain(pa.array(profile.values[:20], pa.large_string()))
    refused: list[int] = []
    seconds = raw.times(start, lambda i, _text: refused.append(i))
    return any(EARLIEST <= s <= LATEST for i, s in enumerate(seconds.tolist()) if i not in refused)


def _no_time(profile: Profile) -> str:
    """time `ts` is 'soon' in line 7"""
    refused: list[tuple[int, str]] = []
    raw.times(profile.column, lambda i, text: refused.append((i, text)))
    i, text = next((pair for pair in refused if pair[1]), refused[0] if refused else (0, ""))
    place = profile.place(i)
    return (
        f"time `{profile.name}` is {repr(text[:40]) if text else 'missing'} in {place.unit} {place.number:,}"
    )


def _found_time(profile: Profile, times: SampleTimes) -> FoundTime:
    why, warnings = _why(profile, times.seconds), []
    if times.without:
        why += f"; {len(times.without):,} without a time"
        fix = "fix the data, or allow some: data.bad_lines={skip: 1000}"
        warnings.append(f"{_without(profile, times)}, which stops the training: {fix}")
    if times.odd:
        why += f"; {len(times.odd):,} before 1990 or after 2100"
        warnings.append(
            f"{_odd(profile, times)}: training uses these times as they are, so a split by a duration (valid: 1d) "
            "may hold out only these examples; fix the data, or remove these examples"
        )
    if _is_ambiguous(profile):
        warnings.append(
            f"{profile.name} is read as day.month.year, but no sampled value, such as {profile.values[0][:20]!r}, "
            "has a day after the 12th: if the month comes first, convert it to ISO (2026-11-30 10:00)"
        )
    return FoundTime(profile.name, why, tuple(warnings))


def _is_ambiguous(profile: Profile) -> bool:
    """Dotted dates in which both numbers could be the month, and differ."""
    dates = [DOTTED_DATE.fullmatch(value) for value in profile.values]
    pairs = {(int(date[1]), int(date[2])) for date in dates if date is not None}
    return bool(pairs) and all(first <= 12 for first, _ in pairs) and any(a != b for a, b in pairs)


def unread_times(profiles: list[Profile], label: str, time: str | None) -> tuple[str, ...]:
    """Warnings about columns with the name of a time whose values are not supported."""
    others = [
        p for p in profiles if p.name not in (label, time) and TIME_NAME.search(p.name) and p.distinct > 1
    ]
    # If there is another time of the example, a time of day or an hour is a feature.
    named = [p for p in others if time is None or PLAIN_TIME_NAME.fullmatch(p.name)]
    candidates = [(p, _what_unread(p, time is None)) for p in named if not is_time(p)]
    return tuple(
        f"{p.name} is named like a time, but {p.values[0][:30]!r} is {what}"
        for p, what in candidates
        if what is not None
    )


def _what_unread(profile: Profile, no_other: bool) -> str | None:
    fix = "to split by time, write ISO (2026-11-30 10:00) or epoch seconds"
    start = profile.values[:SHOWN_VALUES]
    for pattern, what in UNREAD_TIMES:
        if all(pattern.match(value.strip()) for value in start):
            return f"{what}: {fix}"
    if profile.numbers is None:
        unread = (
            no_other
            and PLAIN_TIME_NAME.fullmatch(profile.name)
            and profile.read_times(MOST_WITHOUT_TIME) is None
        )
        return f"not supported: {fix}" if unread else None
    low, high = float(profile.quantity.min()), float(profile.quantity.max())
    if low >= EXCEL_DAYS[0] and high < EXCEL_DAYS[1]:
        return f"probably a spreadsheet day number: {fix}"
    if no_other and not profile.is_whole and low >= EARLIEST and high <= LATEST:
        return (
            "a number with a fraction; if it is in epoch seconds, set "
            f'--time {profile.name} (in Python: time="{profile.name}")'
        )
    return None


def _without(profile: Profile, times: SampleTimes) -> str:
    """ts has no time in 3 of 4,000 sampled examples, first '0000-00-00' in line 7"""
    return f"{profile.name} has no time in {_first(profile, times.without)}"


def _odd(profile: Profile, times: SampleTimes) -> str:
    """ts is before 1990 or after 2100 in 1 of 4,000 sampled examples, first '9999-12-31' in line 7"""
    return f"{profile.name} is before 1990 or after 2100 in {_first(profile, times.odd)}"


def _first(profile: Profile, examples: Sequence[int]) -> str:
    place, text = profile.place(examples[0]), raw.value_text(profile.column, examples[0])
    shown = repr(text[:40]) if text and text != "None" else "nothing"
    return (
        f"{len(examples):,} of {profile.examples:,} sampled examples, first {shown} in "
        f"{place.unit} {place.number:,}"
    )


def is_time(profile: Profile) -> bool:
    """Whether a column holds times, although another column is the time of the example."""
    return _score(profile) > 0


def _time_of_folders(folders: Mapping[str, Sequence[str]]) -> FoundTime | None:
    """dt=2026-11-01/, dt=2026-11-02/, ..., each with more examples than the sample."""
    for name, values in folders.items():
        if TIME_NAME.search(name) is None or len(set(values)) < 2:
            continue
        try:
            days = [parse_moment(value) for value in values]
        except UserError:
            continue
        if min(days) >= EARLIEST and max(days) <= LATEST:
            return FoundTime(name, f"folder names: {days_in_words(min(days), max(days))} UTC")
    return None


def _score(profile: Profile) -> float:
    """0 if not a time. A name counts more than the order, a finer clock more than a coarse one."""
    if profile.distinct < 2 or (profile.numbers is not None and not profile.is_whole):
        return 0.0
    named = TIME_NAME.search(profile.name) is not None
    if profile.numbers is not None and not named and not _is_clock_like(profile.quantity):
        return 0.0
    times = profile.times
    if times is None or times.min() < EARLIEST or times.max() > LATEST:
        return 0.0
    ascending = is_ascending(times)
    if profile.numbers is not None and not named and not ascending and not _is_epoch(profile, times):
        return 0.0
    return 4.0 * named + 2.0 * ascending + profile.distinct / max(profile.examples, 1) + 0.1


def _is_epoch(profile: Profile, times: NDArray[np.int64]) -> bool:
    """Many different times within a few years of this century, and a name that does not suggest anything else.

    Ids with equally many digits are spread wider, or are fewer.
    """
    if NO_TIME_NAME.search(profile.name) or profile.distinct < 20 or float(profile.quantity.min()) < 1e9:
        return False
    low, high = int(times.min()), int(times.max())
    return low >= THIS_CENTURY and high <= SOON and high - low <= LONGEST_LOG


def _is_clock_like(numbers: NDArray[np.float64]) -> bool:
    """Large enough for epoch seconds of this century, or 8 digits: yyyymmdd, yymmddHH."""
    low, high = float(numbers.min()), float(numbers.max())
    return low >= 1e9 or (low >= 1e7 and high < 1e8)


def _why(profile: Profile, times: NDArray[np.int64]) -> str:
    order = ", ascending" if is_ascending(times) else ""
    days = days_in_words(int(times.min()), int(times.max()))
    if isinstance(profile.column, TextColumn) and profile.numbers is not None:
        low, high = int(profile.quantity.min()), int(profile.quantity.max())
        return f"integers {low}..{high}{order}: {days} UTC"
    kind = (
        "text"
        if isinstance(profile.column, TextColumn) or pa.types.is_string(profile.column.type)
        else "times"
    )
    return f"{kind}{order}: {days} UTC"
