"""Rules of admission and expiry as the row stores apply them: one for each table of a store (csrc/row_rules.h)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data.row_lifetime import Expire
from gearshift.data.schema import Schema
from gearshift.embedding.store import RowBlock

RuleState = Mapping[str, NDArray[Any]]  # as checkpoints keep it
FACTS, FIRST_PART = "rules", "first_part"  # among its arrays: the rules, and the width that norms are of
SKETCH_BYTES = 16 << 20  # of a store that counts occurrences, over all its shards
COUNTS = ("admitted", "refused_occurrences", "refused_gradients", "expired")


@dataclass(frozen=True)
class RowRule:
    """The rule of one table; the default leaves every row where it is."""

    table: str = ""
    min_count: int = 0
    admit: float = 1.0
    expire: Expire | None = None
    period: int = -1  # the place of `expire.after` among the periods of the schema

    @property
    def is_gated(self) -> bool:
        return self.min_count > 1 or self.admit < 1.0

    @property
    def facts(self) -> tuple[int, float, bool, int, float]:
        """As the core takes them."""
        expire = self.expire
        below = 2**32 - 1 if expire is None else expire.occurrences_below or 2**32 - 1
        norm = math.inf if expire is None else expire.norm_below or math.inf
        return self.min_count, self.admit, expire is not None, below, norm


def sketch_bytes(rules: Sequence[RowRule]) -> int:
    """Memory of a store with these rules that counts the occurrences of ids without rows, over all its shards."""
    return SKETCH_BYTES if any(rule.min_count > 1 for rule in rules) else 0


def periods_of(schema: Schema) -> tuple[int | str, ...]:
    """The different values of `expire.after`."""
    return tuple(dict.fromkeys(rule.expire.after for rule in _owned(schema) if rule.expire is not None))


def rules_of(schema: Schema, tables: Sequence[str]) -> tuple[RowRule, ...]:
    """The rules of a store's tables, by their number from 0, which is for unknown ones; empty if there is none."""
    periods = periods_of(schema)
    known = {rule.table: rule for rule in _owned(schema)}
    rules = [known.get(table, RowRule(table)) for table in tables]
    if not any(rule.is_gated or rule.expire for rule in rules):
        return ()
    placed = [
        replace(rule, period=periods.index(rule.expire.after)) if rule.expire else rule for rule in rules
    ]
    return (RowRule(), *placed)


def _owned(schema: Schema) -> Iterable[RowRule]:
    for field in schema.lifetimes:
        if field.share_embedding is None:
            admit = 1.0 if field.admit is None else field.admit
            yield RowRule(field.name, field.min_count or 0, admit, field.expire)


def saved(rules: Sequence[RowRule], width: int, state: RuleState) -> RuleState:
    """The state with the rules that it belongs to, which a reader of the rows needs."""
    facts = np.array([rule.facts for rule in rules], np.float64)
    return {**state, FACTS: facts, FIRST_PART: np.array([width], np.uint32)}


def living(block: RowBlock, state: RuleState) -> RowBlock:
    """The rows of a block that had not ended when the state was saved."""
    facts = [
        (int(count), float(admit), bool(expires), int(below), float(norm))
        for count, admit, expires, below, norm in state[FACTS]
    ]
    ended_U = np.zeros(len(block.ids_U), np.bool_)
    _core.ended_rows(
        facts,
        int(state[FIRST_PART][0]),
        state["horizons"].tolist(),
        np.ascontiguousarray(block.weights_UW),
        block.touches_U,
        block.last_step_U,
        block.tables_U,
        ended_U,
    )
    if not ended_U.any():
        return block
    return RowBlock(*(column[~ended_U] for column in vars(block).values()))


def joined(states: Sequence[RuleState], of_shard: tuple[int, int] = (0, 1)) -> RuleState:
    """One state of those of several shards, with the partitions of shard `number` of `shards`."""
    number, shards = of_shard
    partitions = np.concatenate([state["partitions"] for state in states])
    own = partitions.astype(np.int64) * shards // 256 == number
    counters = [_counters(state) for state in states]
    if not any(len(each) for each in counters):
        return {**states[0], "partitions": partitions[own], "counts": _rows(states, "counts")[own]}
    return {
        **states[0],
        "partitions": partitions[own],
        "counts": _rows(states, "counts")[own],
        "counters": np.concatenate(_filled(states, counters))[own],
    }


def _rows(states: Sequence[RuleState], name: str) -> NDArray[Any]:
    return np.concatenate([state[name] for state in states])


def _counters(state: RuleState) -> NDArray[Any]:
    return state["counters"]


def _filled(states: Sequence[RuleState], counters: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """A shard that has counted nothing yet has no counters."""
    return [
        own if len(own) else np.zeros((len(state["partitions"]), own.shape[1]), np.uint8)
        for state, own in zip(states, counters, strict=True)
    ]


def counts_by_table(rules: Sequence[RowRule], counts_TC: NDArray[np.uint64]) -> dict[str, dict[str, int]]:
    """Of the tables with a rule: how many ids were admitted, and what was refused and expired."""
    return {
        rule.table: dict(zip(COUNTS, map(int, counts), strict=True))
        for rule, counts in zip(rules, counts_TC, strict=True)
        if rule.is_gated or rule.expire is not None
    }
