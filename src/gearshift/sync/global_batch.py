"""gba (Global Batch gradients Aggregation, Alibaba 2022): no worker waits, and a step is still one global batch.

Work begins at once and carries a token: the step that it is scheduled for. The first global batch of gradients that
arrive form a step, each weighted by its lag, the number of steps that it is behind its schedule. The global batch is
the same as in synchronous training, so learning rate and optimizer state stay valid when a run switches.

- token = steps applied + (examples waiting and in flight) // global batch. Without losses it equals the counter of the
  paper, with each value issued once per gradient of a step. After a loss, a switch, a join or a short flush it is
  still correct, whereas a counter would stay shifted.
- Lag is not staleness: lag is about 0 on average and identifies stragglers; staleness (steps applied since the pull)
  is about (N-1)/M. A negative lag is ahead of schedule and has weight 1.
- Work begun before a switch to gba is on schedule at the switch: its lag counts from there.
- A gradient of weight 0 fills its place in the step, counts in the divisor (unless `divisor: kept`) and is discarded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from gearshift.errors import UserError
from gearshift.settings.declaration import setting
from gearshift.settings.units import Number
from gearshift.sync.checks import at_least, one_of
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, first_parked, full, part
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    global_batch: int
    batch: int
    max_lag: Number | None = setting(
        None,
        "Steps behind schedule up to which a gradient counts in full; max(4, 2 N / M) if not set.",
        at_least=0,
    )
    decay: Literal["cut", "exponential", "inverse"] = setting(
        "cut", "Treatment of later gradients: dropped (cut), or decreasing weight."
    )
    divisor: Literal["all", "kept"] = setting(
        "all",
        "Divide a step by all of its examples, including dropped ones (all), or only by those used (kept).",
    )
    name: ClassVar[str] = "gba"
    scheduled_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        one_of(("cut", "exponential", "inverse"), decay=self.decay)
        one_of(("all", "kept"), divisor=self.divisor)
        number = isinstance(self.max_lag, int | float) and self.max_lag >= 0
        if self.max_lag is not None and not number:
            raise UserError(f"max_lag is {self.max_lag!r}: it must be a number of steps, 0 or more")

    def start(self, work: Work) -> Start | None:
        under_way = work.waiting_examples + work.flying_examples
        return Start(first_parked(work), work.step + under_way // self.global_batch)

    def form(self, work: Work) -> Step | None:
        if not full(work, self.global_batch):
            return None
        limit = self.limit(work)
        flights = sorted(earliest(work, self.global_batch), key=lambda flight: flight.lease.first)
        parts = []
        for flight in flights:
            lag = work.step - flight.token
            weight = self.weight(lag, limit)
            reason = "" if weight else f"too late: {lag} steps behind its schedule, max_lag is {limit:g}"
            parts.append(part(work, flight, weight, reason))
        return Step(tuple(parts), self.divisor == "kept")

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None

    def limit(self, work: Work) -> float:
        if self.max_lag is not None:
            return self.max_lag
        return max(4, math.ceil(2 * work.workers * self.batch / self.global_batch))

    def weight(self, lag: int, limit: float) -> float:
        """1 if on schedule or early. If late: 1 up to the limit and then 0, or decreasing with lag/limit."""
        if lag <= 0:
            return 1.0
        if self.decay == "cut":
            return 1.0 if lag <= limit else 0.0
        late = lag / limit if limit else math.inf
        return math.exp(-late) if self.decay == "exponential" else 1.0 / (1.0 + late)
