"""Admission and expiry in a table: the `RowLifetimes` of a `MemoryStore`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gearshift._core import RowTable
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.row_rules import COUNTS, RowRule, RuleState, joined, sketch_bytes


class TableLifetimes:
    """`RowLifetimes` describes each method. With any rule, pulls create no rows."""

    def __init__(self, table: RowTable, rules: Sequence[RowRule]) -> None:
        self.rules, self._table = tuple(rules), table
        if self.rules:
            table.set_rules([rule.facts for rule in self.rules])

    @property
    def sketch_bytes(self) -> int:
        """Memory that counts the occurrences of ids without rows."""
        return sketch_bytes(self.rules)

    def move_horizons(self, horizons: Horizons) -> None:
        if any(rule.expire for rule in self.rules):
            steps = dict(horizons.steps)
            self._table.move_horizons(horizons.mark, [steps.get(rule.period, 0) for rule in self.rules])

    def restore(self, states: Sequence[RuleState], of_shard: tuple[int, int] = (0, 1)) -> None:
        if self.rules and states:
            self._table.restore_rules(dict(joined(states, of_shard)))

    def counts(self) -> NDArray[np.uint64]:
        return self._table.rule_counts() if self.rules else np.zeros((0, len(COUNTS)), np.uint64)
