"""sync: a step is one global batch, computed by all on the same parameters.

Work for step k+1 begins when step k is applied, and is given out until it is a global batch; the step is formed
when all of it is in, so what was begun here is never stale. What was begun before a switch to sync fills the first
rounds, and early workers wait for it. A worker may take several leases of a round; a lost one is given out again
within the round. Gradients are summed in the order of their examples, so the result does not depend on which worker
was faster. Leases that do not divide the global batch make a round larger, by less than one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.sync.settings import at_least
from gearshift.sync.strategy import Start, Step, earliest, first_parked, full, whole
from gearshift.sync.work import Flight, Work


@dataclass(frozen=True, slots=True)
class Sync:
    global_batch: int
    batch: int
    name: ClassVar[str] = "sync"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)

    def start(self, work: Work) -> Start | None:
        if work.flying_examples + work.waiting_examples >= self.global_batch:
            return None  # the round is given out; early workers wait for it to fill
        return Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        if work.flying_for or not full(work, self.global_batch):
            return None  # the round is not in
        if all(map(work.adopted, work.waiting.values())):
            return whole(work, earliest(work, self.global_batch))
        return whole(
            work, work.waiting.values()
        )  # nothing of the round is left for the next, where it would be stale

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
