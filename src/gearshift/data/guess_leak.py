"""Columns that give the label away: known only after the click, or another spelling of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data import columns as raw
from gearshift.data.profile import Profile
from gearshift.data.schema import Label

FEWEST = 20  # examples of each label value, below which a coincidence is likely
MOST_VALUES = 50


def label_values(profile: Profile, label: Label) -> NDArray[np.bool_]:
    """Which examples of the sample are clicks; what cannot be read is none."""
    return raw.labels(profile.column, label.positive, lambda _i, _text: None) > 0.5


def gives_label_away(profile: Profile, clicked: NDArray[np.bool_]) -> str | None:
    """Why this column must not be a feature, or None."""
    if profile.is_list or min(clicked.sum(), (~clicked).sum()) < FEWEST:
        return None
    ids = np.empty(profile.examples, np.int64)
    raw.write_ids(profile.column, 0, ids)
    missing = ids == _core.xxh64(b"", 0) >> 1
    if profile.missing and (missing != clicked).all():
        return "has a value exactly when the label is 1: it would give the label away"
    if profile.missing and (missing == clicked).all():
        return "is missing exactly when the label is 1: it would give the label away"
    if profile.distinct <= MOST_VALUES and _decides(ids, clicked):
        return "each of its values belongs to one label value: it would give the label away"
    return None


def _decides(ids: NDArray[np.int64], clicked: NDArray[np.bool_]) -> bool:
    return not np.intersect1d(ids[clicked], ids[~clicked]).size
