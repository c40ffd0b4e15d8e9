"""One pass over the data: what workers report goes in, and what the strategy decides is done.

All calls come from one thread. Who begins what is told at once, with the version it must see. Steps and discards
become orders to the shards, one after the other: the next is given when all shards have carried out the last and the
host has looked. So whatever the host does there, an evaluation or a checkpoint, sees exactly that step. Knows no
tensor: what a worker says of its gradient (`report`) is handed on to the host when its lease ends.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from gearshift.errors import UserError
from gearshift.parameters.shard import ApplyStep, Drop
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import (
    Action,
    Apply,
    Begin,
    DataExhausted,
    Discard,
    Event,
    Exchange,
    ExchangeDone,
    GradientArrived,
    GradientRefused,
    Lease,
    Part,
    Reissue,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.training.ended import Ended
from gearshift.training.engine import Log

R = TypeVar("R")


@dataclass(frozen=True)
class UnusableGradient:
    """What a worker has instead of a gradient."""

    reason: str


class Host(Protocol[R]):
    """Whoever runs the training: it is told of every step, and says how large the next one is."""

    def rate(self, examples: int) -> float:
        """What the learning rates are multiplied with in a step that ends this many examples later."""

    def ended(self, leases: Sequence[Ended[R]]) -> None:
        """These are done with; called before the step they formed is announced."""

    def stepped(self) -> bool:
        """After every step; False asks the engine to stop here."""


class ReplicaHost(Protocol):
    """A host whose workers have replicas of their own."""

    def meet(self, number: int) -> bool:
        """All replicas meet. True: they have; else `Epoch.exchanged` is called when they have."""


class Shards(Protocol):
    def carry_out(self, what: ApplyStep | Drop, open_from: int) -> bool:
        """An order to all of them. True: it is done; else `Epoch.carried_out` is called when it is."""


class Epoch(Generic[R]):
    def __init__(
        self,
        coordinator: Coordinator,
        shards: Shards,
        host: Host[R],
        log: Log | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.coordinator, self.shards, self.host, self._log = coordinator, shards, host, log
        self.tell: Callable[
            [Begin], None
        ]  # brings a worker its work; the engine's to set, before anybody joins
        self.stopped = False
        self.step = coordinator.work.step  # carried out by all shards
        self._reports: dict[int, R] = {}  # by lease
        self._flights: dict[int, tuple[int, Lease]] = {}  # worker and lease, by lease number, lowest first
        self._decided: deque[Apply | Discard | Reissue | Exchange] = deque()  # and not carried out yet
        self._under_way: Apply | None = None
        self._clock, self._began = now, now()

    # What an engine reports

    @property
    def hungry(self) -> bool:
        """Whether somebody waits for work and there is none at hand."""
        work = self.coordinator.work
        return bool(work.parked) and not work.supply and not work.exhausted

    @property
    def done(self) -> bool:
        return self.stopped or (self.coordinator.work.done and self.at_rest)

    @property
    def at_rest(self) -> bool:
        """Whether all that was decided is carried out."""
        return not self._decided and self._under_way is None

    def supply(self, first: int, count: int, batch: int | None = None) -> None:
        """Examples that may be leased, `batch` at a time, or all of them as one lease."""
        self._handle(Supplied(first, count, batch or count, self._now()))

    def exhausted(self) -> None:
        self._handle(DataExhausted(self._now()))

    def joined(self, worker: int) -> None:
        self._handle(WorkerJoined(worker, self._now()))

    def requested(self, worker: int) -> None:
        self._handle(WorkRequested(worker, self._now()))

    def arrived(self, worker: int, lease: int, report: R, seconds: float = 0.0, version: int = 0) -> None:
        """Every shard has the gradient of this lease; it was computed on parameters of step `version`, or newer."""
        if lease in self._flights:
            self._reports.setdefault(lease, report)
        self._handle(GradientArrived(worker, lease, self._now(), seconds, version))

    def refused(self, worker: int, lease: int, reason: str) -> None:
        """The worker has no gradient that could be used."""
        self._handle(GradientRefused(worker, lease, reason, self._now()))

    def lost(self, worker: int, reason: str) -> None:
        self._handle(WorkerLost(worker, reason, self._now()))

    def switch(self, strategy: str, settings: dict[str, Any], reason: str) -> None:
        self._handle(SwitchRequested(strategy, settings, reason, self._now()))

    def exchanged(self, number: int) -> None:
        """All replicas have met, as they were told to."""
        self._handle(ExchangeDone(number, self._now()))

    def carried_out(self) -> None:
        """All shards have done what they were told last."""
        step, self._under_way = self._under_way, None
        if step is not None:
            self._announce(step)
        self._carry_out_next()

    def held_by(self, lease: int) -> int | None:
        """The worker that this lease was given to; None if it has ended."""
        return self._flights[lease][0] if lease in self._flights else None

    def open_ranges(self) -> list[tuple[int, int]]:
        """(first, count) of what was supplied and has not ended: a restored run leases it anew."""
        return sorted([*self.leased_ranges(), *self.unbegun_ranges()])

    def leased_ranges(self) -> list[tuple[int, int]]:
        """Of these, what somebody has begun."""
        leases = [*(lease for _, lease in self._flights.values()), *self.coordinator.work.supply.returned]
        return sorted({(lease.first, lease.count) for lease in leases})

    def unbegun_ranges(self) -> list[tuple[int, int]]:
        """Of these, what nobody has begun; a range may be many leases."""
        return [(first, count) for first, count, _ in self.coordinator.work.supply.ranges]

    # What is done

    def _now(self) -> float:
        return self._clock() - self._began

    def _handle(self, event: Event) -> None:
        actions = self._decide(event)
        if self._log is not None:
            self._log(event, actions)
        for action in actions:
            if isinstance(action, Begin):
                self._flights[action.lease.number] = action.worker, action.lease
                self.tell(action)
            else:
                self._decided.append(action)
        if self._under_way is None:
            self._carry_out_next()

    def _decide(self, event: Event) -> list[Action]:
        try:
            return self.coordinator.handle(event)
        except Exception as error:
            if isinstance(event, SwitchRequested) and isinstance(error, UserError):
                raise
            strategy = type(self.coordinator.strategy)
            if strategy.__module__.startswith("gearshift."):
                raise
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise UserError(
                f"strategy {strategy.__module__}:{strategy.__qualname__} failed: {type(error).__name__}: {error} "
                f"({at.filename}:{at.lineno}). The last checkpoint is intact; resume with another strategy"
            ) from error

    def stuck(self) -> UserError:
        """Nobody works, nobody may begin, and there are examples left: a strategy that forgets its workers."""
        strategy, work = self.coordinator.strategy, self.coordinator.work
        return UserError(
            f"strategy {strategy.name} lets nobody begin: {len(work.parked)} workers wait, "
            f"{len(work.waiting)} gradients are in no step, and the data are not done. The last checkpoint is intact"
        )

    def _carry_out_next(self) -> None:
        """In the order decided, until the shards have something to do."""
        while self._decided and not self.stopped:
            match action := self._decided.popleft():
                case Apply():
                    if not self._order_step(action):
                        return
                    self._announce(action)
                case Discard(number, reason) if number in self._flights:
                    self.host.ended([self._end(Part(number, 0.0, reason))])
                    self.shards.carry_out(Drop(number), self._open_from())
                case Exchange(number):
                    if cast(ReplicaHost, self.host).meet(number):
                        self.exchanged(number)
                case Reissue(number):
                    del self._flights[number]
                    self._reports.pop(number, None)
                    self.shards.carry_out(Drop(number), self._open_from())

    def _order_step(self, action: Apply) -> bool:
        scale = self.host.rate(sum(self._flights[part.lease][1].count for part in action.parts))
        parts = tuple((part.lease, part.weight) for part in action.parts)
        self._under_way = action
        done = self.shards.carry_out(
            ApplyStep(action.step, parts, scale, action.over_kept), self._open_from()
        )
        if done:
            self._under_way = None
        return done

    def _announce(self, action: Apply) -> None:
        self.step = action.step
        self.host.ended([self._end(part) for part in action.parts])
        looking = self._clock()
        if not self.host.stepped():
            self.stopped = True
        self._began += self._clock() - looking  # events tell the time of training

    def _end(self, part: Part) -> Ended[R]:
        worker, lease = self._flights.pop(part.lease)
        return Ended(worker, lease, self._reports.pop(part.lease, None), part)

    def _open_from(self) -> int:
        return next(iter(self._flights), self.coordinator.work.supply.next_number)
