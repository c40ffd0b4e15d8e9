"""buffered_async: no worker waits, and a step is any global batch of gradients, in arrival order, at full weight.

The GBA paper calls it BSP. It is gba without the rule for lag.
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
class BufferedAsync:
    global_batch: int
    batch: int
    gradients_per_step: Count | None = setting(
        None, "Number of gradients per step; a global batch if not set.", at_least=1
    )
    name: ClassVar[str] = "buffered_async"
    scheduled_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        if self.gradients_per_step is not None:
            at_least(1, gradients_per_step=self.gradients_per_step)

    @property
    def examples(self) -> int:
        return self.gradients_per_step * self.batch if self.gradients_per_step else self.global_batch

    def start(self, work: Work) -> Start | None:
        ahead = work.waiting_examples + work.flying_examples
        return Start(first_parked(work), work.step + ahead // self.examples)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, self.examples)) if full(work, self.examples) else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None
