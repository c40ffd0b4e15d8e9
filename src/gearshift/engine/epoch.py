"""One epoch: workers report, the strategy decides, and the epoch carries out its decisions.

A batch, from lease to applied step:

1. `supply` names a range of examples; a worker asks for work (`requested`).
2. The strategy answers with `Begin`: the worker gets the lease of a batch, and the version of the parameters that it
   must see. It pulls them, computes the gradient, and pushes it to every shard.
3. It reports (`arrived`): the gradient waits on the shards until the strategy decides.
4. `Apply` names the gradients that form the next step, with their weights. The shards are ordered to apply it.
5. When all shards have done so, the host counts the leases of the step (`ended`) and inspects it (`stepped`): this is
   where evaluations, checkpoints and switches happen, exactly between two steps.
6. `Discard` ends a lease without a step; `Reissue` returns the examples of a lost worker, to be leased again;
   `Duplicate` ends a lease whose examples another worker has computed too.

Orders are carried out one after the other: the next order is given when all shards have carried out the last one and
the host has inspected the step. All calls come from one thread. No tensors here: the report that a worker sends with
its gradient is passed on to the host when the lease ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from gearshift.embedding.horizons import Horizons
from gearshift.engine.strategy_failures import decide
from gearshift.parameters.shard import ApplyStep, Drop
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Apply,
    Begin,
    DataExhausted,
    Discard,
    Duplicate,
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
    TimePassed,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
    version_of,
)
from gearshift.sync.work import Supply
from gearshift.training.ended import Ended
from gearshift.training.engine import Log

R = TypeVar("R")
Decision = Apply | Discard | Reissue | Duplicate | Exchange


@dataclass(frozen=True)
class UnusableGradient:
    """The reason why a worker has no usable gradient."""

    reason: str


class Host(Protocol[R]):
    """Runs the training: it is notified of every step, and gives the learning-rate factor of the next one."""

    def rate(self, examples: int) -> float:
        """The factor of the learning rates in a step that ends this many examples later."""

    def horizons(self, step: int) -> Horizons | None:
        """The new horizons of rows that come with this step, if it is time for some."""

    def ended(self, leases: Sequence[Ended[R]]) -> None:
        """These leases have ended; called before the step that they formed is announced."""

    def duplicated(self, examples: int) -> None:
        """A worker has begun a lease of so many examples that was not needed, because another has the same."""

    def stepped(self) -> bool:
        """Called after every step. Returning False stops the engine here."""


class ReplicaHost(Protocol):
    """A host whose workers have replicas of their own."""

    def meet(self, number: int) -> bool:
        """Starts a meeting of all replicas. True: it is complete; else `Epoch.exchanged` is called later."""


class Shards(Protocol):
    def carry_out(self, what: ApplyStep | Drop, open_from: int) -> bool:
        """Sends an order to all shards. True: it is already done; else `Epoch.carried_out` is called on completion."""


class Epoch(Generic[R]):
    """`begin` is called to give a worker its lease."""

    def __init__(
        self,
        coordinator: Coordinator,
        shards: Shards,
        host: Host[R],
        begin: Callable[[Begin], None],
        log: Log | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.coordinator, self.shards, self.host, self._log = coordinator, shards, host, log
        self._begin = begin
        self.leases = OpenLeases[R](coordinator.work.supply)
        self.stopped = False
        self.step = coordinator.work.step  # carried out by all shards
        self._decided: deque[Decision] = deque()  # not carried out yet
        self._under_way: Apply | None = None
        self._clock = EventClock(now)

    # Called by the engine

    @property
    def done(self) -> bool:
        return self.stopped or (self.coordinator.work.done and self.at_rest)

    @property
    def at_rest(self) -> bool:
        """Whether all decided actions have been carried out."""
        return not self._decided and self._under_way is None

    def supply(self, first: int, count: int, batch: int | None = None) -> None:
        """Adds examples that may be leased, `batch` at a time, or all of them as one lease."""
        self._handle(Supplied(first, count, batch or count, self._clock.now()))

    def exhausted(self) -> None:
        self._handle(DataExhausted(self._clock.now()))

    def joined(self, worker: int) -> None:
        self._handle(WorkerJoined(worker, self._clock.now()))

    def requested(self, worker: int) -> None:
        self._handle(WorkRequested(worker, self._clock.now()))

    def arrived(self, worker: int, lease: int, report: R, seconds: float = 0.0, version: int = 0) -> None:
        """Every shard has the gradient of this lease, computed on parameters of step `version` or newer."""
        self.leases.report(lease, report)
        self._handle(GradientArrived(worker, lease, self._clock.now(), seconds, version))

    def refused(self, worker: int, lease: int, reason: str) -> None:
        """The worker has no usable gradient."""
        self._handle(GradientRefused(worker, lease, reason, self._clock.now()))

    def lost(self, worker: int, reason: str) -> None:
        self._handle(WorkerLost(worker, reason, self._clock.now()))

    @property
    def wakes_in(self) -> float | None:
        """The seconds after which `time_passed` may have a consequence; None: never, unless something happens."""
        at = self.coordinator.wakes_at
        return None if at is None else at - self._clock.now()

    def time_passed(self) -> None:
        """Lets idle workers begin what only time allows. Other calls have no effect, and are not logged."""
        waiting = self.wakes_in
        if waiting is not None and waiting <= 0:
            self._handle(TimePassed(self._clock.now()))

    def switch(self, strategy: str, settings: dict[str, Any], reason: str) -> None:
        self._handle(SwitchRequested(strategy, settings, reason, self._clock.now()))

    def exchanged(self, number: int) -> None:
        """The exchange with this number is complete: all replicas have taken part."""
        self._handle(ExchangeDone(number, self._clock.now()))

    def carried_out(self) -> None:
        """All shards have carried out their last order."""
        step, self._under_way = self._under_way, None
        if step is not None:
            self._announce(step)
        self._carry_out_next()

    # Carrying out decisions

    def _handle(self, event: Event) -> None:
        actions = decide(self.coordinator, event)
        if self._log is not None:
            self._log(event, actions)
        for action in actions:
            if isinstance(action, Begin):
                self.leases.begin(action.worker, action.lease)
                self._begin(action)
            else:
                self._decided.append(action)
        if self._under_way is None:
            self._carry_out_next()

    def _carry_out_next(self) -> None:
        """Carries out actions in the order of the decisions, until an order to the shards is in progress."""
        while self._decided and not self.stopped:
            match action := self._decided.popleft():
                case Apply():
                    if not self._order_step(action):
                        return
                    self._announce(action)
                case Discard(number, reason) if number in self.leases:
                    self.host.ended([self.leases.end(Part(number, 0.0, reason))])
                    self.shards.carry_out(Drop(number), self.leases.first_open)
                case Duplicate(number):
                    self.host.duplicated(self.leases.examples(number))
                    self.leases.give_back(number)
                    self.shards.carry_out(Drop(number), self.leases.first_open)
                case Exchange(number):
                    if cast(ReplicaHost, self.host).meet(number):
                        self.exchanged(number)
                case Reissue(number):
                    self.leases.give_back(number)
                    self.shards.carry_out(Drop(number), self.leases.first_open)

    def _order_step(self, action: Apply) -> bool:
        scale = self.host.rate(sum(self.leases.examples(part.lease) for part in action.parts))
        parts = tuple((part.lease, part.weight) for part in action.parts)
        late = tuple((part.lease, version_of(action, part)) for part in action.parts if part.unchanged_rows)
        horizons = self.host.horizons(action.step)
        self._under_way = action
        order = ApplyStep(
            action.step,
            parts,
            scale,
            action.over_kept,
            horizons,
            action.dense_rate,
            late,
            self.leases.trained(action.parts) / self.coordinator.strategy.global_batch,
        )
        done = self.shards.carry_out(order, self.leases.first_open)
        if done:
            self._under_way = None
        return done

    def _announce(self, action: Apply) -> None:
        self.step = action.step
        self.host.ended([self.leases.end(part) for part in action.parts])
        with self._clock.stopped():
            if not self.host.stepped():
                self.stopped = True


class EventClock:
    """The seconds since the beginning of the epoch, without those in which the host inspects steps."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._began = now, now()

    def now(self) -> float:
        return round(self._now() - self._began, 5)  # as the log has it, so that a replay decides the same

    @contextmanager
    def stopped(self) -> Iterator[None]:
        stopped = self._now()
        yield
        self._began += self._now() - stopped


class OpenLeases(Generic[R]):
    """Leases that workers hold and that have not ended, with the workers' reports; by number, lowest first.

    `supply` has the examples that are not leased yet.
    """

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._begun: dict[int, tuple[int, Lease]] = {}  # worker and lease
        self._reports: dict[int, R] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._begun

    def begin(self, worker: int, lease: Lease) -> None:
        self._begun[lease.number] = worker, lease

    def report(self, number: int, report: R) -> None:
        """Records the worker's report; only the first report of an open lease counts."""
        if number in self._begun:
            self._reports.setdefault(number, report)

    def end(self, part: Part) -> Ended[R]:
        worker, lease = self._begun.pop(part.lease)
        return Ended(worker, lease, self._reports.pop(part.lease, None), part)

    def give_back(self, number: int) -> None:
        """Removes a lease whose examples are leased again under another number."""
        del self._begun[number]
        self._reports.pop(number, None)

    def held_by(self, number: int) -> int | None:
        """The worker that this lease was given to; None if it has ended."""
        return self._begun[number][0] if number in self._begun else None

    def examples(self, number: int) -> int:
        return self._begun[number][1].count

    def trained(self, parts: Sequence[Part]) -> int:
        """The examples whose gradients count in a step."""
        return sum(self.examples(part.lease) for part in parts if part.weight > 0)

    @property
    def first_open(self) -> int:
        """The lowest number of an open lease; all below have ended."""
        return next(iter(self._begun), self._supply.next_number)

    def ranges(self) -> list[tuple[int, int]]:
        """(first, count) of supplied ranges that have not ended: a restored run leases them again."""
        return sorted([*self.leased_ranges(), *self.unbegun_ranges()])

    def leased_ranges(self) -> list[tuple[int, int]]:
        """The ranges that are leased to workers."""
        leases = [*(lease for _, lease in self._begun.values()), *self._supply.returned]
        return sorted({(lease.first, lease.count) for lease in leases})

    def unbegun_ranges(self) -> list[tuple[int, int]]:
        """The supplied ranges that are not leased yet; a range may become many leases."""
        return [(first, count) for first, count, _ in self._supply.ranges]
