"""Open leases that a second worker computes too: the gradient that arrives first counts."""

from __future__ import annotations

from gearshift.sync.flight import Flight


class Copies:
    def __init__(self) -> None:
        self.by_original: dict[int, Flight] = {}
        self.original_of: dict[int, int] = {}  # by the lease of the copy
        self.dropped: dict[int, Flight] = {}  # ended, but their workers still compute them

    def add(self, original: int, copy: Flight) -> None:
        self.by_original[original] = copy
        self.original_of[copy.lease.number] = original

    def remove(self, original: int) -> Flight:
        copy = self.by_original.pop(original)
        del self.original_of[copy.lease.number]
        return copy

    def forget(self, worker: int) -> None:
        """The worker computes nothing any more."""
        self.dropped = {lease: flight for lease, flight in self.dropped.items() if flight.worker != worker}
