"""What the disk tiers of a process did: as one value, as metrics of the process, and summed over several processes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import reduce

from gearshift.embedding.store import RowStore, TableLookups, TierCounts

PREFIX = "tier_"
UNWRITTEN = PREFIX + "unwritten"  # 1: rows that leave memory cannot be written to disk
WHY_UNWRITTEN = UNWRITTEN + "/"  # prefix of a metric that is named after the reason
BY_TABLE = "tier/"  # prefix of the metrics of one table: tier/FIELD/TABLE
NAMES = tuple(field.name for field in fields(TierCounts))


@dataclass(frozen=True)
class TierSummary:
    """The disk tiers of all stores and shards together."""

    counts: TierCounts
    tables: Mapping[str, TableLookups]  # by the name of the table; "" for ids of unknown tables

    def __add__(self, other: TierSummary) -> TierSummary:
        return TierSummary(self.counts + other.counts, summed_lookups([self.tables, other.tables]))


def tier_summary(stores: Iterable[RowStore]) -> TierSummary | None:
    """None if all rows stay in memory."""
    tiers = [store.tier for store in stores if store.tier is not None]
    summaries = [TierSummary(tier.counts(), tier.lookups()) for tier in tiers]
    return reduce(operator.add, summaries) if summaries else None


def summed_lookups(parts: Iterable[Mapping[str, TableLookups]]) -> dict[str, TableLookups]:
    total: dict[str, TableLookups] = {}
    for tables in parts:
        for table, lookups in tables.items():
            total[table] = total[table] + lookups if table in total else lookups
    return total


def tier_figures(stores: Iterable[RowStore]) -> dict[str, float]:
    """Empty if all rows stay in memory."""
    tiered = [store for store in stores if store.tier is not None]
    summary = tier_summary(tiered)
    if summary is None:
        return {}
    failures = [why for store in tiered if store.tier is not None and (why := store.tier.write_failure())]
    return {
        **{PREFIX + name: value for name, value in asdict(summary.counts).items()},
        UNWRITTEN: float(bool(failures)),
        **{WHY_UNWRITTEN + why: 1.0 for why in failures},
        **{
            f"{BY_TABLE}{name}/{table}": float(value)
            for table, lookups in summary.tables.items()
            for name, value in asdict(lookups).items()
        },
    }


def write_failure(figures: Iterable[str]) -> str | None:
    """Why the process with these metrics cannot write rows to disk; None if it can."""
    return next(
        (name.removeprefix(WHY_UNWRITTEN) for name in figures if name.startswith(WHY_UNWRITTEN)), None
    )


def summary_of(figures: Iterable[Mapping[str, float]]) -> TierSummary | None:
    """That of all processes, from their metrics; None if none has a tier."""
    summaries = [
        TierSummary(TierCounts(*(int(one[PREFIX + name]) for name in NAMES)), _lookups_in(one))
        for one in figures
        if PREFIX + NAMES[0] in one
    ]
    return reduce(operator.add, summaries) if summaries else None


def _lookups_in(figures: Mapping[str, float]) -> dict[str, TableLookups]:
    tables: dict[str, dict[str, int]] = {}
    for key, value in figures.items():
        if key.startswith(BY_TABLE):
            name, table = key.removeprefix(BY_TABLE).split("/", 1)
            tables.setdefault(table, {})[name] = int(value)
    return {table: TableLookups(**values) for table, values in tables.items()}
