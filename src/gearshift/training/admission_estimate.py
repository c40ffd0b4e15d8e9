"""How many ids get rows under `min_count` or `admit`, and what a `min_count` would save for a table that does not fit.

Estimated from the sample of the first examples. Occurrences of ids are taken to follow a power law, as in
`tier_estimate.py`. If the number of distinct ids grows as n^b, the share of ids that have occurred k times goes to
b (1-b) ... (k-1-b) / k!, whatever n (Karlin 1967, "Central limit theorems for certain infinite urn schemes", section
3). Its generating function is 1 - (1-x)^b, so of ids whose occurrences are each admitted with probability p, the share
p^b gets a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gearshift.data.batch import Batch, Ids
from gearshift.data.row_lifetime import MOST_COUNT
from gearshift.data.schema import Schema
from gearshift.embedding.lookup import FieldGroup
from gearshift.embedding.row_rules import RowRule

PROPOSED_COUNTS = (2, 3)  # occurrences in one pass over the data
USUAL_NAME = re.compile(r"[A-Za-z_][\w.-]*")
WORTHWHILE, OF_A_FEATURE = 0.2, 0.1  # of all bytes: what a proposal saves, and what each feature in it does


@dataclass(frozen=True)
class Growth:
    """How distinct ids come into being: `rows` in the end, which grow as examples^exponent."""

    rows: int
    exponent: float

    def share_below(self, count: int) -> float:
        """The share of the ids that occur less often than `count`."""
        b, share, of_k = self.exponent, 0.0, 1.0
        for k in range(1, count):
            of_k *= (b if k == 1 else k - 1 - b) / k
            share += of_k
        return share

    def share_admitted(self, rule: RowRule, epochs: int) -> float:
        """The share of the ids that get a row. Each epoch repeats the occurrences."""
        if rule.min_count > 1:
            return 1.0 - self.share_below(-(-rule.min_count // epochs))
        return float((1.0 - (1.0 - rule.admit) ** epochs) ** self.exponent)


@dataclass(frozen=True)
class TableGrowth:
    """How the rows of a table come into being: of the ids, the share `admitted` gets rows."""

    table: str
    growth: Growth
    admitted: float

    @property
    def rows(self) -> float:
        return self.growth.rows * self.admitted


@dataclass(frozen=True)
class AdmissionProposal:
    """Settings for the features that save enough, and the bytes of all rows with them."""

    settings: tuple[str, ...]
    row_bytes: int


def growth_of(ids: Sequence[Ids], factor: float) -> Growth:
    """Of the ids in each batch of a sample, if there will be `factor` times as many examples in the end."""
    if not sum(map(len, ids)):
        return Growth(0, 0.0)
    whole = len(np.unique(np.concatenate(ids)))
    half = len(np.unique(np.concatenate(ids[: max(1, len(ids) // 2)])))
    exponent = 0.0 if len(ids) < 2 or half == 0 else max(0.0, min(1.0, math.log2(whole / half)))
    return Growth(int(whole * max(1.0, factor) ** exponent), exponent)


def propose_admission(
    schema: Schema,
    stores: Sequence[tuple[Sequence[TableGrowth], int]],
    *,
    epochs: int,
    room: float,
) -> AdmissionProposal | None:
    """The smallest of the proposed counts with which the rows fit in `room` bytes, else the largest of them.

    None if it would save too little. `stores` are the tables of each store, and the bytes of its rows.
    """
    sizes = [size for tables, row_bytes in stores for size in _table_sizes(tables, row_bytes)]
    row_bytes = sum(size for _, size in stores)
    proposal = None
    for in_a_pass in PROPOSED_COUNTS:
        saved = {table.table: size * table.growth.share_below(in_a_pass) for table, size in sizes}
        chosen = [name for name in _settable(schema) if saved.get(name, 0) >= OF_A_FEATURE * row_bytes]
        left = row_bytes - sum(saved[name] for name in chosen)
        count = (in_a_pass - 1) * epochs + 1
        if left > (1 - WORTHWHILE) * row_bytes or count > MOST_COUNT:
            continue
        settings = (f"{place_of(schema, name)}.min_count={count}" for name in chosen)
        proposal = AdmissionProposal(tuple(settings), int(left))
        if left <= room:
            break
    return proposal


def tables_of(group: FieldGroup, sample: Sequence[Batch], factor: float, epochs: int) -> list[TableGrowth]:
    """The tables of a store, if there will be `factor` times as many examples as in the sample."""
    ids = [group.occurrences(batch) for batch in sample]
    tables = [group.occurrence_tables(batch) for batch in sample]
    rules = {rule.table: rule for rule in group.rules}
    found = []
    for number, table in enumerate(group.tables, 1):
        growth = growth_of([of[at == number] for of, at in zip(ids, tables, strict=True)], factor)
        found.append(TableGrowth(table, growth, growth.share_admitted(rules.get(table, RowRule()), epochs)))
    return found


def admitted_share(group: FieldGroup, sample: Sequence[Batch], factor: float, epochs: int) -> float:
    """The share of the ids of a store that get rows."""
    if not any(rule.is_gated for rule in group.rules):
        return 1.0
    tables = tables_of(group, sample, factor, epochs)
    return sum(table.rows for table in tables) / max(1, sum(table.growth.rows for table in tables))


def _table_sizes(tables: Sequence[TableGrowth], row_bytes: int) -> Iterator[tuple[TableGrowth, float]]:
    """Divides the bytes of a store among its tables."""
    rows = max(1.0, sum(table.rows for table in tables))
    for table in tables:
        yield table, row_bytes * table.rows / rows


def _settable(schema: Schema) -> list[str]:
    """The features that own a table and have no rule of admission yet."""
    return [
        feature.name
        for feature in schema.lifetimes
        if feature.share_embedding is None and feature.min_count is None and feature.admit is None
    ]


def place_of(schema: Schema, name: str) -> str:
    """A feature of the config as a setting names it: `features[user_id]`, or by position if its name is unusual."""
    names = [feature.name for feature in schema.features]
    return f"features[{name if USUAL_NAME.fullmatch(name) else names.index(name)}]"
