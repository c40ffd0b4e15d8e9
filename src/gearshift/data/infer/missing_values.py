r"""Finds the words that mean "missing" in a text file: NULL, \N, nan, and NA unless it is a name.

Some words are never values. Others may be (NA is also Namibia, None a choice): they count only if they occur in
several columns or among numbers, and not if they occur in a column of two-letter codes. An infinity among numbers is
usually a division by zero, which no model can use, so it counts as missing too.
"""

from __future__ import annotations

import re

from gearshift.data.infer.profile import Profile

SURE_MARKERS = (r"\N", "NULL", "null", "Null", "<NA>", "#N/A", "N/A", "n/a", "nan", "NaN", "NAN", "(null)")
INFINITIES = (
    "inf",
    "-inf",
    "Inf",
    "-Inf",
    "INF",
    "Infinity",
    "-Infinity",
    "infinity",
    "-infinity",
    "#DIV/0!",
)
DOUBTFUL_MARKERS = ("NA", "na", "None", "none", "NONE", "?")
NUMBER = re.compile(r"[-+]?[\d.,]*\d[\d.,]*([eE][-+]?\d+)?")
SHOWN_VALUES = 200  # number of most frequent values that are examined


def find_missing_markers(profiles: list[Profile]) -> tuple[str, ...]:
    sure = [word for word in SURE_MARKERS if any(word in p.values for p in profiles)]
    doubtful = [word for word in DOUBTFUL_MARKERS if _is_marker(word, profiles)]
    infinities = [word for word in INFINITIES if any(_among_numbers(word, p) for p in profiles)]
    return (*sure, *doubtful, *infinities)


def _is_marker(word: str, profiles: list[Profile]) -> bool:
    holding = [profile for profile in profiles if word in profile.values]
    others = [[v for v in p.values[:SHOWN_VALUES] if v != word] for p in holding]
    if any(values and all(re.fullmatch(r"[A-Z]{2}", v) for v in values) for values in others):
        return False
    return len(holding) >= 2 or any(_among_numbers(word, profile) for profile in holding)


def _among_numbers(word: str, profile: Profile) -> bool:
    if word not in profile.values:
        return False
    words = {*SURE_MARKERS, *DOUBTFUL_MARKERS, *INFINITIES}
    others = [value for value in profile.values[:SHOWN_VALUES] if value not in words]
    return bool(others) and all(NUMBER.fullmatch(value) for value in others)
