"""Collects all predictions of one task: exact metrics, also by slice, and the grouped AUC.

An example takes 8 to 24 bytes, and up to 100 while the metrics are computed. Beyond `EXACT_EXAMPLES`, AUC and
calibration come from the histograms of `Measures`, which know their error bound. If examples have groups, every
second group is then dropped, repeatedly if necessary: the grouped AUC is computed on a random sample of groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gearshift.metrics.exact import Grouped, grouped
from gearshift.metrics.measures import Measures
from gearshift.metrics.slices import Slices

EXACT_EXAMPLES = 5_000_000
SPARSEST_SAMPLE = 2**16  # one in this many groups is kept; a group that is still too large cannot be kept
Column = NDArray[Any] | None


@dataclass(frozen=True)
class Measured:
    """The metrics of some examples; `grouped` is None if there are no groups."""

    measures: Measures
    grouped: Grouped | None


class Collected:
    """Takes predictions batch by batch; `whole()` and `slices()` return their figures."""

    def __init__(self, limit: int = EXACT_EXAMPLES, slices: int = 1000) -> None:
        self._limit = limit
        self._measures, self._slices = Measures(), Slices(slices)
        self._count = 0  # number of examples kept
        self._kept: list[tuple[Column, ...]] | None = []  # labels, scores, weights, groups, slices
        self._one_in = 1  # sampling of groups

    def update(
        self,
        labels: ArrayLike,
        scores: ArrayLike,
        weights: ArrayLike | None = None,
        groups: NDArray[np.int64] | None = None,
        keys: Iterable[Any] | None = None,
    ) -> None:
        """Add a batch; `groups` are ids, `keys` name the slice of each example."""
        self._measures.update(labels, scores, weights)
        numbers = None if keys is None else self._slices.update(keys, labels, scores, weights)
        if self._kept is None:
            return
        # copies, because views would keep the whole batch alive
        new = _floats(labels), _floats(scores), _floats(weights), _ids(groups), numbers
        self._kept.append(new if self._one_in == 1 else self._thinned(new))
        self._count += len(_present(self._kept[-1][0]))
        while self._kept is not None and self._count > self._limit:
            self._thin_out()

    def _thin_out(self) -> None:
        """Drop every second group, or all of them if that does not help."""
        self._one_in *= 2
        if self._kept is None or self._columns()[3] is None or self._one_in > SPARSEST_SAMPLE:
            self._kept = None
            return
        self._kept = [self._thinned(self._columns())]
        self._count = len(_present(self._kept[0][0]))

    def _thinned(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        mixed = (_present(columns[3]) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)
        chosen = mixed % np.uint64(self._one_in) == 0
        return tuple(None if column is None else column[chosen] for column in columns)

    def whole(self) -> Measured:
        return self._measured(self._measures, slice(None))

    def slices(self) -> dict[Any, Measured]:
        """The metrics by key, in the order of first appearance."""
        by_key = self._slices.measures
        if not by_key or self._kept is None:
            return {key: Measured(measures, None) for key, measures in by_key.items()}
        numbers = self._columns()[4]
        assert numbers is not None
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(by_key)))
        parts = np.split(order, ends[:-1])
        return {
            key: self._measured(measures, part)
            for (key, measures), part in zip(by_key.items(), parts, strict=True)
        }

    def _measured(self, measures: Measures, chosen: Any) -> Measured:
        if not self._kept:
            return Measured(measures, None)
        labels, scores, weights, groups, _ = (
            None if column is None else column[chosen] for column in self._columns()
        )
        assert labels is not None and scores is not None
        if self._one_in == 1:
            measures.take_exact(labels, scores, weights)
        if groups is None:
            return Measured(measures, None)
        return Measured(measures, replace(grouped(labels, scores, groups, weights), one_in=self._one_in))

    def _columns(self) -> tuple[Column, ...]:
        """Each column as one array. The pieces of the batches are released."""
        assert self._kept
        if len(self._kept) > 1:
            joined = [None if c[0] is None else np.concatenate(c) for c in zip(*self._kept, strict=True)]
            self._kept = [tuple(joined)]
        return self._kept[0]


def _floats(values: ArrayLike | None) -> Column:
    return None if values is None else np.array(values, np.float32)


def _ids(values: ArrayLike | None) -> Column:
    return None if values is None else np.array(values).astype(np.uint64)


def _present(column: Column) -> NDArray[Any]:
    assert column is not None
    return column
