"""Separate measures for each value of a key, such as a country or a day."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gearshift.metrics.measures import Measures
from gearshift.metrics.shared_arithmetic import columns


class Slices:
    """Separate measures for each value of a key: a country, a day. Keys beyond `limit` are combined as `OTHER`."""

    OTHER = "(other)"

    def __init__(self, limit: int = 1000, bins: int = 2**12) -> None:
        self._limit, self._bins = limit, bins
        self._of: dict[Any, Measures] = {}
        self._numbers: dict[Any, int] = {}

    def update(
        self,
        keys: Iterable[Any],
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> NDArray[np.int32]:
        """Add a batch. Returns the index in `measures` for each example."""
        label, probability, weight = columns(labels, probabilities, weights)
        values, place = np.unique(np.asarray(keys), return_inverse=True)
        order = np.argsort(place, kind="stable")
        ends = np.cumsum(np.bincount(place, minlength=len(values)))
        number_B = np.empty(len(label), np.int32)
        for value, positions in zip(values.tolist(), np.split(order, ends[:-1]), strict=True):
            chosen = None if weights is None else weight[positions]
            key = self._key(value)
            self._of.setdefault(key, Measures(self._bins)).update(
                label[positions], probability[positions], chosen
            )
            number_B[positions] = self._numbers.setdefault(key, len(self._numbers))
        return number_B

    @classmethod
    def of(cls, measures: dict[Any, Measures]) -> Slices:
        """Continue with measures from a checkpoint."""
        slices = cls()
        slices._of = dict(measures)
        slices._numbers = {key: number for number, key in enumerate(measures)}
        return slices

    @property
    def measures(self) -> dict[Any, Measures]:
        """The measures by key, in the order of first appearance."""
        return dict(self._of)

    def _key(self, value: Hashable) -> Hashable:
        return value if value in self._of or len(self._of) < self._limit else self.OTHER


def day_name(day: int | str) -> str:
    """The date of a day counted from 1970-01-01 (epoch seconds // 86,400), which is the key for days in `Slices`.

    >>> day_name(20_758)
    '2026-11-01'
    """
    return day if isinstance(day, str) else str(np.datetime64(day, "D"))  # the only name is `Slices.OTHER`
