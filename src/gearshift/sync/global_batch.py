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
- A worker pulls the dense parameters that are predicted for its token (`predicted_pull`), and a stale step may have a
  lower dense rate (`staleness_rate`). Without staleness there is neither.
- A gradient of weight 0 fills its place in the step, counts in the divisor (unless `divisor: kept`) and is discarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gearshift.errors import UserError
from gearshift.settings.declaration import setting
from gearshift.settings.units import Number
from gearshift.sync.checks import at_least, one_of, true_or_false
from gearshift.sync.events import STORED, Extrapolation, Part
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, first_parked, full, in_order, part, usual_max_lag
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
    predicted_pull: bool = setting(
        True,
        "Workers pull the dense parameters as they are expected to be at the step of their gradient.",
    )
    staleness_rate: bool = setting(
        False, "Divide the dense learning rate of a step by 1 + the mean staleness of its gradients."
    )
    late_rows: Literal["drop", "unchanged"] = setting(
        "drop",
        "A dropped gradient's rows: dropped too (drop), or applied where no step since its pull has changed them.",
    )
    name: ClassVar[str] = "gba"
    scheduled_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        one_of(("cut", "exponential", "inverse"), decay=self.decay)
        one_of(("all", "kept"), divisor=self.divisor)
        true_or_false(predicted_pull=self.predicted_pull, staleness_rate=self.staleness_rate)
        one_of(("drop", "unchanged"), late_rows=self.late_rows)
        number = isinstance(self.max_lag, int | float) and self.max_lag >= 0
        if self.max_lag is not None and not number:
            raise UserError(f"max_lag is {self.max_lag!r}: it must be a number of steps, 0 or more")

    def start(self, work: Work) -> Start | None:
        under_way = work.waiting_examples + work.flying_examples
        ahead = under_way // self.global_batch
        return Start(first_parked(work), work.step + ahead, extrapolation=self._extrapolation(work, ahead))

    def _extrapolation(self, work: Work, ahead: int) -> Extrapolation:
        if not self.predicted_pull or not ahead:
            return STORED
        return Extrapolation(ahead, round(min(1.0, work.waiting_examples / self.global_batch), 4))

    def form(self, work: Work) -> Step | None:
        if not full(work, self.global_batch):
            return None
        limit = self.limit(work)
        parts = [self._part(work, flight, limit) for flight in in_order(earliest(work, self.global_batch))]
        rate = staleness_rate(work, parts) if self.staleness_rate else 1.0
        return Step(tuple(parts), self.divisor == "kept", rate)

    def _part(self, work: Work, flight: Flight, limit: float) -> Part:
        lag = work.step - flight.token
        if weight := self.weight(lag, limit):
            return part(work, flight, weight)
        reason = f"too late: {lag} steps behind its schedule, max_lag is {limit:g}"
        if self.late_rows == "drop":
            return part(work, flight, 0.0, reason)
        reason += "; rows that nobody has changed since its pull count"
        return replace(part(work, flight, 0.0, reason), unchanged_rows=True)

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None

    def limit(self, work: Work) -> float:
        if self.max_lag is not None:
            return self.max_lag
        return usual_max_lag(work, self.batch, self.global_batch)

    def weight(self, lag: int, limit: float) -> float:
        """1 up to the limit, then 0, or decreasing with the steps beyond it in units of the limit."""
        if lag <= limit:
            return 1.0
        if self.decay == "cut":
            return 0.0
        late = (lag - limit) / max(1.0, limit)
        return math.exp(-late) if self.decay == "exponential" else 1.0 / (1.0 + late)


def staleness_rate(work: Work, parts: Iterable[Part]) -> float:
    """1 / (1 + mean staleness), over the examples that count."""
    weights = [(part, part.weight * work.waiting[part.lease].lease.count) for part in parts]
    total = sum(weight for _, weight in weights)
    stale = sum(part.staleness * weight for part, weight in weights)
    return round(1.0 / (1.0 + stale / total), 4) if total else 1.0
