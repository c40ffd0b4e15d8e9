"""Strategies that answer "what if": gba with another rule for what it drops, and sync that is always a step late.

Made by where they are: `switching.ablations:RandomDrops`. Not part of the package: nobody should train with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar
from zlib import crc32

from gearshift.sync.checks import at_least
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, earliest, first_parked, full, part, whole
from gearshift.sync.synchronous import Sync
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class RandomDrops:
    """gba that drops a share of the gradients whatever their lag: is it the number that costs, or which ones?"""

    global_batch: int
    batch: int
    share: float = 0.0
    seed: int = 0
    name: ClassVar[str] = "random_drops"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)

    def start(self, work: Work) -> Start | None:
        return _start_at_once(work, self.global_batch)

    def form(self, work: Work) -> Step | None:
        return _form(work, self.global_batch, lambda flight: self.draws(flight.lease.number), "by lot")

    def draws(self, lease: int) -> bool:
        """A strategy holds no random number: the lot is a hash of the lease."""
        return crc32(f"{self.seed} {lease}".encode()) < self.share * 2**32

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class StalenessCut:
    """gba that drops by staleness, the steps since the pull, where gba drops by lag, the steps behind schedule."""

    global_batch: int
    batch: int
    max_staleness: int = 4
    name: ClassVar[str] = "staleness_cut"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)
        at_least(0, max_staleness=self.max_staleness)

    def start(self, work: Work) -> Start | None:
        return _start_at_once(work, self.global_batch)

    def form(self, work: Work) -> Step | None:
        return _form(
            work, self.global_batch, lambda f: work.step - f.version > self.max_staleness, "too stale"
        )

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class SlowSync:
    """sync at a lower dense rate: what a lower rate is worth without any staleness."""

    global_batch: int
    batch: int
    dense_rate: float = 1.0
    name: ClassVar[str] = "slow_sync"

    def start(self, work: Work) -> Start | None:
        return Sync(self.global_batch, self.batch).start(work)

    def form(self, work: Work) -> Step | None:
        step = Sync(self.global_batch, self.batch).form(work)
        return None if step is None else replace(step, dense_rate=self.dense_rate)

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class DelayedSync:
    """sync with one step of delay: the gradients of step k are those of the parameters of step k-2, always.

    Two rounds are under way, and a step waits until the next round is given out: so that all of it has begun on
    the parameters before the step. Rounds go by their tokens.
    """

    global_batch: int
    batch: int
    name: ClassVar[str] = "delayed_sync"

    def __post_init__(self) -> None:
        at_least(1, global_batch=self.global_batch, batch=self.batch)

    def start(self, work: Work) -> Start | None:
        return None if _under_way(work) >= 2 * self.global_batch else _start_at_once(work, self.global_batch)

    def form(self, work: Work) -> Step | None:
        given_out = _under_way(work) >= 2 * self.global_batch or (work.exhausted and not work.supply)
        if not given_out or not work.waiting:
            return None
        due = min(flight.token for flight in work.waiting.values())
        if any(flight.token <= due for flight in work.flying.values()):
            return None
        return whole(work, (flight for flight in work.waiting.values() if flight.token == due))

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None


def _under_way(work: Work) -> int:
    return work.waiting_examples + work.flying_examples


def _start_at_once(work: Work, global_batch: int) -> Start:
    return Start(first_parked(work), work.step + _under_way(work) // global_batch)


def _form(work: Work, global_batch: int, dropped: Callable[[Flight], bool], reason: str) -> Step | None:
    if not full(work, global_batch):
        return None
    flights = sorted(earliest(work, global_batch), key=lambda flight: flight.lease.first)
    return Step(tuple(part(work, f, 0.0, reason) if dropped(f) else part(work, f) for f in flights))
