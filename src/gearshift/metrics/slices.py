"""Measures apart for each value of a key, such as a country or a day."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gearshift.metrics.arithmetic import columns
from gearshift.metrics.streaming import Measures


class Slices:
    """Measures apart for each value of a key: a country, a day. Keys beyond `limit` are one, `OTHER`."""

    OTHER = "(other)"

    def __init__(self, limit: int = 1000, bins: int = 2**12) -> None:
        self._limit, self._bins = limit, bins
        self._of: dict[Any, Measures] = {}

    def update(
        self,
        keys: Iterable[Any],
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> None:
        label, probability, weight = columns(labels, probabilities, weights)
        values, place = np.unique(np.asarray(keys), return_inverse=True)
        order = np.argsort(place, kind="stable")
        ends = np.cumsum(np.bincount(place, minlength=len(values)))
        for value, positions in zip(values.tolist(), np.split(order, ends[:-1]), strict=True):
            chosen = None if weights is None else weight[positions]
            self._measures(value).update(label[positions], probability[positions], chosen)

    @classmethod
    def of(cls, measures: dict[Any, Measures]) -> Slices:
        """Goes on with measures from a checkpoint."""
        slices = cls()
        slices._of = dict(measures)
        return slices

    @property
    def measures(self) -> dict[Any, Measures]:
        """By key, in the order of their first appearance."""
        return dict(self._of)

    def _measures(self, key: Hashable) -> Measures:
        if key not in self._of and len(self._of) >= self._limit:
            key = self.OTHER
        return self._of.setdefault(key, Measures(self._bins))


def day_name(day: int | str) -> str:
    """The date of a day counted from 1970-01-01, as keys of `Slices` are for days (epoch seconds // 86,400).

    >>> day_name(20_758)
    '2026-11-01'
    """
    return day if isinstance(day, str) else str(np.datetime64(day, "D"))  # a name is `Slices.OTHER`
