"""sync: a step is one global batch, computed by all workers on the same parameters.

Work for step k+1 begins when step k is applied, and leases are issued until they add up to a global batch. The step
is formed when all of them have arrived, so work begun here is never stale. Work begun before a switch to sync fills the
first rounds, and early workers wait for it; stragglers that are staler than gba allows by default are left out. A
worker may take several leases of a round; a lost lease is reissued within the round. Gradients are summed in the order
of their examples, so the result does not depend on the speed of workers. If leases do not divide the global batch, a
round is larger by less than one lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import (
    Start,
    Step,
    earliest,
    first_parked,
    full,
    whole_without_stale,
)
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class Sync:
    global_batch: int
    batch: int
    name: ClassVar[str] = "sync"
    in_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)

    def start(self, work: Work) -> Start | None:
        if work.flying_examples + work.waiting_examples >= self.global_batch:
            return None  # all leases of the round are issued; early workers wait
        return Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        if work.flying_for or not full(work, self.global_batch):
            return None  # the round is incomplete
        only_adopted = all(map(work.adopted, work.waiting.values()))
        # Of a round nothing is left over, where it would be stale.
        flights = earliest(work, self.global_batch) if only_adopted else work.waiting.values()
        return whole_without_stale(work, flights)

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
