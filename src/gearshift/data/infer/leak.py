"""Detects columns that reveal the label: known only after the click, or a copy of it.

Each column is scored by how well it alone separates clicks from the rest (its AUC on the sample): by being missing, by
its most frequent value, by its number, or by the click rate of each value. At LEAK or above the column is left out; at
SUSPICIOUS or above the user gets a warning. A column that only some clicks set (a conversion) has a low AUC, but is
detected too: wherever it is set, the label is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data import columns as raw
from gearshift.data.infer.profile import Profile
from gearshift.data.schema import Label
from gearshift.metrics.exact import auc

FEWEST = 20  # examples per label value; with fewer, a coincidence is likely
MOST_VALUES = 50  # with more values, their click rates overfit the sample
LEAK = 0.99  # AUC of one column alone; no legitimate feature reaches it
SUSPICIOUS = 0.95
FEWEST_SET = 30  # examples in which a column is set, all of them clicks
CHANCE = 1e-9  # probability that all are clicks by chance; low, because there are many columns and values
MISSING = _core.xxh64(b"", 0) >> 1  # the id of a missing value
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Leak:
    """Why a column may reveal the label. A `sure` leak is left out."""

    sure: bool
    reason: str


def label_values(profile: Profile, label: Label) -> Mask:
    """Which examples of the sample are clicks. Unreadable labels are not."""
    return raw.labels(profile.column, label.positive, lambda _i, _text: None, label.missing) > 0.5


def find_leak(profile: Profile, clicked: Mask) -> Leak | None:
    """The leak in this column, or None."""
    if profile.is_list or _few(clicked):
        return None
    for words, score in _scores(profile, clicked):
        if score >= LEAK:
            return Leak(True, f"{words}: it would reveal the label")
        if score >= SUSPICIOUS:
            return Leak(False, f"{words}: is it known before the click?")
    return _set_by_clicks(profile, clicked)


def _set_by_clicks(profile: Profile, clicked: Mask) -> Leak | None:
    """A column that is set only for clicks, though not for all. If only one value has this property: a warning."""
    ids = np.empty(profile.examples, np.int64)
    raw.write_ids(profile.column, 0, ids)
    present = ids != MISSING
    if profile.distinct == 0 or not present.any():
        return None
    if profile.missing and _only_clicks(clicked, present):
        return Leak(True, f"has a value {_in_clicks(present)}: it would reveal the label")
    values, index = np.unique(ids, return_inverse=True)
    common = np.where(values == MISSING, 0, np.bincount(index)).argmax()
    rest = present & (index != common)
    if _only_clicks(clicked, rest):
        return Leak(True, f"is not {profile.values[0][:20]!r} {_in_clicks(rest)}: it would reveal the label")
    if profile.distinct > MOST_VALUES:
        return None
    for i in range(len(values)):
        holds = index == i
        if _only_clicks(clicked, holds):
            text = raw.value_text(profile.column, int(holds.argmax()))
            words = "is missing" if values[i] == MISSING else f"is {text[:20]!r}"
            return Leak(False, f"{words} {_in_clicks(holds)}: is it known before the click?")
    return None


def _only_clicks(clicked: Mask, holds: Mask) -> bool:
    count = int(holds.sum())
    by_chance = count * math.log(clicked.mean())
    return count >= FEWEST_SET and by_chance < math.log(CHANCE) and bool(clicked[holds].all())


def _in_clicks(holds: Mask) -> str:
    return f"only when the label is 1 (in {int(holds.sum()):,} examples, all of them clicks)"


def _few(clicked: Mask) -> bool:
    return bool(min(clicked.sum(), (~clicked).sum()) < FEWEST)


def _scores(profile: Profile, clicked: Mask) -> Iterator[tuple[str, float]]:
    """(description, AUC) of each way to separate clicks, the simplest first."""
    ids = np.empty(profile.examples, np.int64)
    raw.write_ids(profile.column, 0, ids)
    missing = ids == MISSING
    if profile.missing:
        yield _one_value(clicked, missing, "is missing", "has a value")
    if profile.distinct == 0:
        return
    common = profile.values[0][:20]
    values, index = np.unique(ids, return_inverse=True)
    counts = np.where(values == MISSING, 0, np.bincount(index))
    yield _one_value(clicked, index == counts.argmax(), f"is {common!r}", f"is not {common!r}")
    if profile.distinct <= MOST_VALUES:
        yield _by_value(index, clicked)
    elif profile.numbers is not None:
        yield _by_number(profile, clicked, missing)


def _one_value(clicked: Mask, holds: Mask, yes: str, no: str) -> tuple[str, float]:
    """How well one property alone separates clicks, worded for the side of the clicks."""
    score = (
        1 + float(holds[clicked].mean()) - float(holds[~clicked].mean())
    ) / 2  # the AUC of a binary score
    words = yes if score >= 0.5 else no
    exactly = "exactly" if score in (0.0, 1.0) else "nearly exactly"
    return f"{words} {exactly} when the label is 1", max(score, 1 - score)


def _by_value(index: NDArray[np.int64], clicked: Mask) -> tuple[str, float]:
    """Score each example by the click rate of its value; `index` has the value of each example."""
    rates = np.bincount(index, clicked) / np.bincount(index)
    score = auc(clicked, rates[index])
    if ((rates == 0) | (rates == 1)).all():
        return "each of its values belongs to one label value", score
    return f"its values alone have an AUC of {score:.3f}", score


def _by_number(profile: Profile, clicked: Mask, missing: Mask) -> tuple[str, float]:
    numbers = raw.floats(profile.column, lambda _i, _text: None)
    present = ~missing & np.isfinite(numbers)
    if _few(clicked[present]):
        return "", 0.0
    score = auc(clicked[present], numbers[present])
    larger = "larger" if score >= 0.5 else "smaller"
    score = max(score, 1 - score)
    return f"is {larger} for clicks, an AUC of {score:.3f} by itself", score
