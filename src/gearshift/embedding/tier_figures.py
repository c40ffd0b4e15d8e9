"""The counts of a store's disk tier as metrics of a process, and the sum of the metrics of several processes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import reduce

from gearshift.embedding.store import RowStore, TierCounts

PREFIX = "tier_"
NAMES = tuple(field.name for field in fields(TierCounts))


def tier_figures(stores: Iterable[RowStore]) -> dict[str, float]:
    """Empty if all rows stay in memory."""
    counts = [count for store in stores if (count := store.tier_counts()) is not None]
    return (
        {PREFIX + name: value for name, value in asdict(reduce(operator.add, counts)).items()}
        if counts
        else {}
    )


def summed_counts(figures: Iterable[Mapping[str, float]]) -> TierCounts | None:
    """The counts of all processes with a tier; None if none has one."""
    counts = [
        TierCounts(*(int(one[PREFIX + name]) for name in NAMES))
        for one in figures
        if PREFIX + NAMES[0] in one
    ]
    return reduce(operator.add, counts) if counts else None
