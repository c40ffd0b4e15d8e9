"""bounded_staleness (Hop-BS): every gradient is a separate step, but no worker runs far ahead of the slowest.

A worker may begin if it has delivered at most `bound` gradients more than the slowest worker of the run, counted from
the switch to this strategy. A new worker starts at the slowest count; a lost worker no longer holds the others back.
Of the workers that may begin, the one furthest behind is first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count
from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, whole
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class BoundedStaleness:
    global_batch: int
    batch: int
    bound: Count = setting(2, "How many batches a worker may be ahead of the slowest.", at_least=0)
    name: ClassVar[str] = "bounded_staleness"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        at_least(0, bound=self.bound)

    def start(self, work: Work) -> Start | None:
        behind = min(work.pace.parked_at)
        if behind - work.pace.slowest > self.bound:
            return None
        return Start(next(iter(work.pace.parked_at[behind])), work.step)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, 1)) if work.waiting else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
