"""Leases that were given to workers and have not ended, with the workers' reports."""

from __future__ import annotations

from typing import Generic, TypeVar

from gearshift.sync.messages import Lease, Part
from gearshift.sync.work import Supply
from gearshift.training.ended import Ended

R = TypeVar("R")


class OpenLeases(Generic[R]):
    """By lease number, lowest first. `supply` has the examples that are not leased yet."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._begun: dict[int, tuple[int, Lease]] = {}  # worker and lease
        self._reports: dict[int, R] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._begun

    def begin(self, worker: int, lease: Lease) -> None:
        self._begun[lease.number] = worker, lease

    def report(self, number: int, report: R) -> None:
        """Records the worker's report; only the first report of an open lease counts."""
        if number in self._begun:
            self._reports.setdefault(number, report)

    def end(self, part: Part) -> Ended[R]:
        worker, lease = self._begun.pop(part.lease)
        return Ended(worker, lease, self._reports.pop(part.lease, None), part)

    def give_back(self, number: int) -> None:
        """Removes a lease whose examples are leased again under another number."""
        del self._begun[number]
        self._reports.pop(number, None)

    def held_by(self, number: int) -> int | None:
        """The worker that this lease was given to; None if it has ended."""
        return self._begun[number][0] if number in self._begun else None

    def examples(self, number: int) -> int:
        return self._begun[number][1].count

    @property
    def first_open(self) -> int:
        """The lowest number of an open lease; all below have ended."""
        return next(iter(self._begun), self._supply.next_number)

    def ranges(self) -> list[tuple[int, int]]:
        """(first, count) of supplied ranges that have not ended: a restored run leases them again."""
        return sorted([*self.leased_ranges(), *self.unbegun_ranges()])

    def leased_ranges(self) -> list[tuple[int, int]]:
        """The ranges that are leased to workers."""
        leases = [*(lease for _, lease in self._begun.values()), *self._supply.returned]
        return sorted({(lease.first, lease.count) for lease in leases})

    def unbegun_ranges(self) -> list[tuple[int, int]]:
        """The supplied ranges that are not leased yet; a range may become many leases."""
        return [(first, count) for first, count, _ in self._supply.ranges]
