"""ringmaster (Ringmaster ASGD): async that ignores stale gradients. No worker waits.

Every gradient is a separate step on arrival, if it was computed on parameters at most `max_staleness` versions old;
older gradients are discarded. With the threshold R of the paper, `max_staleness` is R - 1. Fast workers then determine
the rate, and no step is made from a gradient that is much too old. A worker that is always slower than the threshold
allows contributes nothing; the report has the discarded examples of each worker.

Maranjyan, Tyurin, Richtarik: Ringmaster ASGD (ICML 2025), Algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count
from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, first_parked, whole
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class Ringmaster:
    global_batch: int
    batch: int
    max_staleness: Count | None = setting(
        None, "Versions behind up to which a gradient is applied; 2 x workers if not set.", at_least=0
    )
    name: ClassVar[str] = "ringmaster"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        if self.max_staleness is not None:
            at_least(0, max_staleness=self.max_staleness)

    def start(self, work: Work) -> Start | None:
        return Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, 1)) if work.waiting else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        most = 2 * work.workers if self.max_staleness is None else self.max_staleness
        staleness = work.step - flight.version
        if staleness <= most:
            return None
        return f"too stale: {staleness} versions behind, max_staleness is {most}"
