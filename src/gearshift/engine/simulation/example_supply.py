"""Which examples are supplied next: a global batch at a time, on demand."""

from __future__ import annotations

from gearshift.sync.events import DataExhausted, Supplied
from gearshift.sync.strategy import Strategy, cuts
from gearshift.sync.work import Work


class ExampleSupply:
    def __init__(self, examples: int) -> None:
        self.examples, self._supplied = examples, 0

    def next(self, strategy: Strategy, work: Work, now: float) -> Supplied | DataExhausted | None:
        """A global batch if a worker waits for it, or slightly more, to avoid a short lease at the end."""
        if self._supplied == self.examples:
            return None if work.exhausted else DataExhausted(now)
        if work.supply or not work.parked:
            return None
        leases = -(-strategy.global_batch // strategy.batch)
        most = strategy.global_batch if cuts(strategy) else leases * strategy.batch
        first, count = self._supplied, min(most, self.examples - self._supplied)
        self._supplied += count
        return Supplied(first, count, strategy.batch, now)
