"""bounded_staleness (Hop-BS): every gradient is a step of its own, but no worker runs ahead of the slowest.

A worker may begin if it has delivered at most `bound` gradients more than the slowest worker of the run. One that
joins starts at the slowest count; one that is lost no longer holds the others back. Of those that may begin, the
one furthest behind is first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.sync.strategy import Start, Step, earliest, whole
from gearshift.sync.work import Flight, Work


@dataclass(frozen=True, slots=True)
class BoundedStaleness:
    global_batch: int
    batch: int
    bound: int = 2
    name: ClassVar[str] = "bounded_staleness"

    def start(self, work: Work) -> Start | None:
        slowest = work.pace.slowest
        for count in range(slowest, slowest + self.bound + 1):
            if count in work.parked_at:
                return Start(next(iter(work.parked_at[count])), work.step)
        return None

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, 1)) if work.waiting else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
