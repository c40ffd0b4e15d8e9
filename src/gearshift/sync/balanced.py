"""balanced: sync without waiting. A step is one global batch, computed by all on the same parameters, cut by speed.

The first lease of a worker in a round is its share of the global batch by measured speed; later ones are shares of the
rest, so they get smaller toward the end of the round (guided self-scheduling). If times cannot be predicted well, a
smaller part is given out at first. When all examples of the round are leased, an idle worker computes the lease that
is expected to arrive last a second time, if it expects to be earlier (backup tasks); the gradient that arrives first
counts. No gradient is stale. The sum of a step is that of `sync` except for its order.

Dividing a synchronous batch by speed: LB-BSP (SoCC 2020). Backup tasks: MapReduce (OSDI 2004).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count
from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Copy, Start, Step, first_parked
from gearshift.sync.synchronous import Sync
from gearshift.sync.work import Work

PATIENCE = 0.5  # a copy waits until the lease is late by this share of the time that the copy takes
MUCH_FASTER = 1.25  # or begins at once, if the lease is expected to take this many times as long from now
SMALLEST_SHARE = 16  # the smallest lease is the mean share divided by this, but not below what a lease costs
CAUTION = 2.0  # the share that is given out at first is 1 / (1 + CAUTION x error of predicted times)


@dataclass(frozen=True, slots=True)
class Balanced:
    global_batch: int
    batch: int  # the mean share of a worker
    smallest: Count | None = setting(
        None,
        "Examples of the smallest lease. Not set: a sixteenth of a worker's share, or more if leases are costly.",
        at_least=1,
    )
    name: ClassVar[str] = "balanced"
    cuts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        if self.smallest is not None:
            at_least(1, smallest=self.smallest)

    def start(self, work: Work) -> Start | None:
        room = self._room(work)
        if room <= 0:
            return None  # all examples of the round are leased
        worker = first_parked(work)
        smallest = self.smallest or ceil(max(self.batch / SMALLEST_SHARE, work.speeds.overhead))
        size = max(smallest, self._size(work, worker, room, smallest))
        return Start(worker, work.step, room if room < size + smallest else size)

    def _size(self, work: Work, worker: int, room: int, smallest: int) -> int:
        """The worker's share. If times are uncertain, a part stays for later that is at least a smallest lease."""
        share = self._share(work, worker, room)
        certain = share / (1 + CAUTION * work.speeds.error)
        return ceil(share if share - certain < smallest else certain)

    def _share(self, work: Work, worker: int, room: int) -> float:
        """The examples that the worker is expected to compute by the end of the round, if all compute until then."""
        speeds = work.speeds
        rate = speeds.of(worker)
        if rate is None:
            return 0.0
        ends, all_rates = self._end_of_round(work)
        left = max(ends - work.at, room / max(rate, all_rates))
        return min(room, rate * left - speeds.overhead)

    def _end_of_round(self, work: Work) -> tuple[float, float]:
        """When the round should end, and the examples per second until then.

        A worker that still computes a copy that is not needed takes part when it is done with it.
        """
        speeds, begin = work.speeds, work.stepped_at
        rates, examples = speeds.of_all or 0.0, self.global_batch + work.workers * speeds.overhead
        busy = [
            (self._expected(work, flight), speeds.of(flight.worker) or 0.0)
            for flight in work.copies.dropped.values()
        ]
        for until, rate in sorted(busy, reverse=True):
            missed = examples + sum(r * max(0.0, b - begin) for b, r in busy if b <= until)
            if rates > rate and until > begin + missed / rates:
                rates -= rate
            else:
                examples = missed
                break
        return begin + examples / rates, rates

    def form(self, work: Work) -> Step | None:
        return Sync(self.global_batch, self.batch).form(work)

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None

    # ---- copies ----

    def copy(self, work: Work) -> Copy | None:
        """The lease that is expected to arrive last, if the fastest idle worker expects to be earlier."""
        worker = self._copier(work)
        if worker is None:
            return None
        due = [flight for flight in self._single(work) if self._due(work, worker, flight) <= work.at]
        if not due:
            return None
        last = max(due, key=lambda flight: self._expected(work, flight))
        return Copy(worker, last.lease.number, work.step)

    def copies_at(self, work: Work) -> float | None:
        worker = self._copier(work)
        if worker is None:
            return None
        return min((self._due(work, worker, flight) for flight in self._single(work)), default=None)

    def _copier(self, work: Work) -> int | None:
        """The fastest idle worker, if there is nothing else to do."""
        if work.speeds.of_all is None:
            return None
        if self._room(work) > 0 and (work.supply or not work.exhausted):
            return None
        return max(work.parked, key=lambda worker: work.speeds.of(worker) or 0.0)

    def _single(self, work: Work) -> Iterator[Flight]:
        """The leases of the next step that one worker computes. Adopted work may be more than fits into one step."""
        copied, all_fit = work.copies.by_original, self._room(work) >= 0
        return (
            flight
            for number, flight in work.flying.items()
            if number not in copied and (all_fit or not work.adopted(flight))
        )

    def _due(self, work: Work, worker: int, flight: Flight) -> float:
        """When a copy by this worker is expected to arrive before the original.

        A lease that is late is expected to take as long again as it is late.
        """
        planned, needed = self._planned(work, flight), self._seconds(work, worker, flight)
        return work.at if planned - work.at > MUCH_FASTER * needed else planned + PATIENCE * needed

    def _expected(self, work: Work, flight: Flight) -> float:
        planned = self._planned(work, flight)
        return max(planned, 2 * work.at - planned)

    def _planned(self, work: Work, flight: Flight) -> float:
        return flight.began + self._seconds(work, flight.worker, flight)

    def _seconds(self, work: Work, worker: int, flight: Flight) -> float:
        seconds = work.speeds.seconds(worker, flight.lease.count)
        assert seconds is not None, "a worker of unknown speed counts as typical"
        return seconds

    def _room(self, work: Work) -> int:
        return self.global_batch - work.flying_examples - work.waiting_examples
