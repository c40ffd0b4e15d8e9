"""Predictions of one task, kept until all have come: exact figures, also by slice, and the grouped AUC.

An example takes 8 to 24 bytes, and a few times as much while the figures are computed. Beyond `EXACT_EXAMPLES` nothing
is kept, and AUC and calibration come from the histograms of `Measures`, which say how far they can be off. Where the
examples have groups all are kept in any case, since a grouped AUC needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gearshift.metrics.exact import Grouped, grouped
from gearshift.metrics.slices import Slices
from gearshift.metrics.streaming import Measures

EXACT_EXAMPLES = 10_000_000
Column = NDArray[Any] | None


@dataclass(frozen=True)
class Measured:
    """The figures of some examples; `grouped` is None where they have no groups."""

    measures: Measures
    grouped: Grouped | None


class Collected:
    """Takes predictions batch by batch; then `whole()` and `slices()` give their figures."""

    def __init__(self, limit: int = EXACT_EXAMPLES, slices: int = 1000) -> None:
        self._limit = limit
        self._measures, self._slices = Measures(), Slices(slices)
        self._kept: list[tuple[Column, ...]] | None = []  # labels, scores, weights, groups, slices

    def update(
        self,
        labels: ArrayLike,
        scores: ArrayLike,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        keys: Iterable[Any] | None = None,
    ) -> None:
        """`keys` name the slice of each example."""
        self._measures.update(labels, scores, weights)
        numbers = None if keys is None else self._slices.update(keys, labels, scores, weights)
        if self._kept is not None and (groups is not None or self._measures.examples <= self._limit):
            # copies: views would keep all that a batch has
            self._kept.append((_floats(labels), _floats(scores), _floats(weights), _copy(groups), numbers))
        else:
            self._kept = None

    def whole(self) -> Measured:
        return self._measured(self._measures, slice(None))

    def slices(self) -> dict[Any, Measured]:
        """By key, in the order of their first appearance."""
        found = self._slices.measures
        if not found or self._kept is None:
            return {key: Measured(measures, None) for key, measures in found.items()}
        numbers = self._columns()[4]
        assert numbers is not None
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(found)))
        parts = np.split(order, ends[:-1])
        return {
            key: self._measured(measures, part)
            for (key, measures), part in zip(found.items(), parts, strict=True)
        }

    def _measured(self, measures: Measures, chosen: Any) -> Measured:
        if not self._kept:
            return Measured(measures, None)
        labels, scores, weights, groups, _ = (
            None if column is None else column[chosen] for column in self._columns()
        )
        assert labels is not None and scores is not None
        measures.take_exact(labels, scores, weights)
        if groups is None:
            return Measured(measures, None)
        return Measured(measures, grouped(labels, scores, groups, weights))

    def _columns(self) -> tuple[Column, ...]:
        """Each as one array; what the batches were cut into is let go."""
        assert self._kept
        if len(self._kept) > 1:
            joined = [None if c[0] is None else np.concatenate(c) for c in zip(*self._kept, strict=True)]
            self._kept = [tuple(joined)]
        return self._kept[0]


def _floats(values: ArrayLike | None) -> Column:
    return None if values is None else np.array(values, np.float32)


def _copy(values: ArrayLike | None) -> Column:
    return None if values is None else np.array(values)
