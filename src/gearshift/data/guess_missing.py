r"""Which words of a text file mean "missing": NULL, \N, nan, and NA where it is no name.

Some words are never a value. Others may be one (NA is also Namibia, None a choice): they count only if they
stand in several columns or among numbers, and not if a column of two-letter codes has them.
"""

from __future__ import annotations

import re

from gearshift.data.profile import Profile

SURE_MARKERS = (r"\N", "NULL", "null", "Null", "<NA>", "#N/A", "N/A", "n/a", "nan", "NaN", "NAN", "(null)")
DOUBTFUL_MARKERS = ("NA", "na", "None", "none", "NONE", "?")
NUMBER = re.compile(r"[-+]?[\d.,]*\d[\d.,]*([eE][-+]?\d+)?")
SHOWN_VALUES = 200  # the most frequent values tell what a column holds


def find_missing_markers(profiles: list[Profile]) -> tuple[str, ...]:
    sure = [word for word in SURE_MARKERS if any(word in p.values for p in profiles)]
    doubtful = [word for word in DOUBTFUL_MARKERS if _is_marker(word, profiles)]
    return (*sure, *doubtful)


def _is_marker(word: str, profiles: list[Profile]) -> bool:
    holding = [profile for profile in profiles if word in profile.values]
    others = [[v for v in p.values[:SHOWN_VALUES] if v != word] for p in holding]
    if any(values and all(re.fullmatch(r"[A-Z]{2}", v) for v in values) for values in others):
        return False
    among_numbers = any(values and all(NUMBER.fullmatch(v) for v in values) for values in others)
    return len(holding) >= 2 or among_numbers
