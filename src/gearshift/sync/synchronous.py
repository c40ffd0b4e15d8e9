"""sync: a step is one global batch, computed by all on the same parameters.

Work for step k+1 begins when step k is applied, and no more of it than a global batch. A worker may take several
leases of a round; a lost one is given out again within the round. Gradients are summed in the order of their
examples, so the result does not depend on which worker was faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.sync.strategy import Start, Step, earliest, first_parked, full, whole
from gearshift.sync.work import Flight, Work


@dataclass(frozen=True, slots=True)
class Sync:
    global_batch: int
    batch: int
    name: ClassVar[str] = "sync"

    def start(self, work: Work) -> Start | None:
        if work.flying_examples + work.waiting_examples >= self.global_batch:
            return None  # the round is given out; early workers wait for it to fill
        return Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        if not full(work, self.global_batch):
            return None
        return whole(work, earliest(work, self.global_batch))

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
