"""Names that a user chooses from (settings, models, columns): an unknown one is answered with the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gearshift.errors import UserError

SIMILAR = 0.6  # of difflib's ratio: less similar names are no suggestion


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error to raise: "unknown model `depfm`. Did you mean `deepfm`? (deepfm, dnn, lr)"."""
    names = list(known)
    near = nearest_name(name.lower(), names)
    hint = f" Did you mean `{near}`?" if near else ""
    return UserError(f"unknown {kind} `{name}`.{hint} ({', '.join(names) or 'none exist'})")


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """The known name with the fewest typing errors to `word`; None if no name is similar.

    Of equally many, the name of the same length (`hsah` is `hash`, not `has`), then the first one.
    """
    similar = [name for name in known if _ratio(word, name) >= SIMILAR]
    return min(
        similar, key=lambda name: (_typing_errors(word, name), abs(len(word) - len(name))), default=None
    )


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, b, a).ratio()


def _typing_errors(a: str, b: str) -> int:
    """Letters left out, added, replaced or swapped with their neighbour (restricted Damerau-Levenshtein)."""
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            errors = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                errors = min(errors, before[j - 2] + 1)
            row.append(errors)
        before, above = above, row
    return above[-1]
