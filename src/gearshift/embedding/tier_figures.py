"""The counts of a store's disk tier as metrics of a process, and the sum of the metrics of several processes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import reduce

from gearshift.embedding.store import RowStore, TierCounts

PREFIX = "tier_"
UNWRITTEN = PREFIX + "unwritten"  # 1: rows that leave memory cannot be written to disk
NAMES = tuple(field.name for field in fields(TierCounts))


def tier_figures(stores: Iterable[RowStore]) -> dict[str, float]:
    """Empty if all rows stay in memory."""
    tiers = [store.tier for store in stores if store.tier is not None]
    if not tiers:
        return {}
    total = asdict(reduce(operator.add, (tier.counts() for tier in tiers)))
    unwritten = any(tier.write_failure() is not None for tier in tiers)
    return {**{PREFIX + name: value for name, value in total.items()}, UNWRITTEN: float(unwritten)}


def summed_counts(figures: Iterable[Mapping[str, float]]) -> TierCounts | None:
    """The counts of all processes with a tier; None if none has one."""
    counts = [
        TierCounts(*(int(one[PREFIX + name]) for name in NAMES))
        for one in figures
        if PREFIX + NAMES[0] in one
    ]
    return reduce(operator.add, counts) if counts else None
