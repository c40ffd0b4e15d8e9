"""async: every gradient is applied as a separate step on arrival, however stale it is. No worker waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, first_parked, whole
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class Async:
    global_batch: int
    batch: int
    name: ClassVar[str] = "async"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)

    def start(self, work: Work) -> Start | None:
        return Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, 1)) if work.waiting else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
