"""backup_workers (Hop-BW): a synchronous step that does not wait for its last few gradients.

Each round issues a global batch plus `backups` extra leases. The first global batch that arrives forms the step, and
later gradients are discarded. Work begun before a switch to this strategy is never late: it counts as issued in the
current round, so it does not displace work begun for that round. With N workers and b backups the global batch is
(N - b) local batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count
from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, first_parked, full, whole
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class BackupWorkers:
    global_batch: int
    batch: int
    backups: Count = setting(1, "Number of last gradients that a step does not wait for.", at_least=1)
    name: ClassVar[str] = "backup_workers"
    in_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        at_least(0, backups=self.backups)

    def start(self, work: Work) -> Start | None:
        given_out = work.waiting_examples + work.flying_adopted + work.flying_for[work.step]
        if given_out < self.global_batch:
            return Start(first_parked(work), work.step)
        if given_out >= self.global_batch + self.backups * self.batch:
            return None
        worker = self._fresh(work)
        return None if worker is None else Start(worker, work.step)

    def _fresh(self, work: Work) -> int | None:
        """A parked worker with no gradient in this round. A second lease would only make it late for the next round."""
        delivered = {flight.worker for flight in work.waiting.values()}
        return next((worker for worker in work.parked if worker not in delivered), None)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, self.global_batch)) if full(work, self.global_batch) else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        if flight.token < work.step and not work.adopted(flight):
            return f"too late: its step {flight.token + 1} was made without it"
        return None
