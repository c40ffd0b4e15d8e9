"""One pass over the data: what workers report goes in, and what the strategy decides is done.

Holds what the strategy never sees: the batches that leases name, and the gradients that wait. All calls come from
one thread. Which worker begins what is left in `begun`, for the engine to carry to its workers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gearshift.embedding.lookup import Found
from gearshift.server import Server
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import (
    Action,
    Apply,
    Begin,
    DataExhausted,
    Discard,
    Event,
    GradientArrived,
    Lease,
    Part,
    Reissue,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.worker import Push


@dataclass(frozen=True)
class Ended:
    """A lease at its end: applied, or discarded for a reason. Its staleness and lag are known if it formed a step."""

    worker: int
    lease: Lease
    found: Found
    push: Push
    part: Part


class Host(Protocol):
    """Whoever runs the training: it is told of every step, and says how large the next one is."""

    def rate(self, examples: int) -> float:
        """What the learning rates are multiplied with in a step that ends this many examples later."""

    def ended(self, leases: Sequence[Ended]) -> None:
        """These are done with; called before the step they formed is announced."""

    def stepped(self) -> bool:
        """After every step; False asks the engine to stop here."""


Log = Callable[[Event, list[Action]], None]


class Epoch:
    def __init__(self, coordinator: Coordinator, server: Server, host: Host, log: Log | None = None) -> None:
        self.coordinator, self.server, self.host, self._log = coordinator, server, host, log
        self.begun: deque[tuple[Begin, Found]] = deque()
        self.stopped = False
        self._found: dict[int, Found] = {}  # by first example
        self._pushes: dict[int, Push] = {}  # by lease
        self._flights: dict[int, tuple[int, Lease]] = {}  # worker and lease, by lease number
        self._began = time.perf_counter()

    # What an engine reports

    @property
    def hungry(self) -> bool:
        """Whether somebody waits for work and there is none at hand."""
        work = self.coordinator.work
        return bool(work.parked) and not work.supply and not work.exhausted

    @property
    def done(self) -> bool:
        return self.stopped or self.coordinator.work.done

    def supply(self, found: Found) -> None:
        batch = found.batch
        self._found[batch.first] = found
        self._handle(Supplied(batch.first, len(batch), len(batch), self._now()))

    def exhausted(self) -> None:
        self._handle(DataExhausted(self._now()))

    def joined(self, worker: int) -> None:
        self._handle(WorkerJoined(worker, self._now()))

    def requested(self, worker: int) -> None:
        self._handle(WorkRequested(worker, self._now()))

    def arrived(self, worker: int, lease: int, push: Push, seconds: float = 0.0) -> None:
        """`push` may be overwritten by its worker once this returns: what is to wait is copied."""
        if lease in self._flights:
            self._pushes[lease] = push
        self._handle(GradientArrived(worker, lease, self._now(), seconds))
        if lease in self._pushes:
            self._pushes[lease] = push.kept()

    def lost(self, worker: int, reason: str) -> None:
        self._handle(WorkerLost(worker, reason, self._now()))

    def switch(self, strategy: str, settings: dict[str, Any], reason: str) -> None:
        self._handle(SwitchRequested(strategy, settings, reason, self._now()))

    def open_ranges(self) -> list[tuple[int, int]]:
        """(first, count) of what was supplied and has not ended: a restored run leases it anew."""
        supply = self.coordinator.work.supply
        leases = [*(lease for _, lease in self._flights.values()), *supply.returned]
        unbegun = [(first, count) for first, count, _ in supply.ranges]
        return sorted([*((lease.first, lease.count) for lease in leases), *unbegun])

    # What is done

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _handle(self, event: Event) -> None:
        actions = self.coordinator.handle(event)
        if self._log is not None:
            self._log(event, actions)
        for action in actions:  # before any step is announced: a snapshot there counts them as begun
            if isinstance(action, Begin):
                self._flights[action.lease.number] = action.worker, action.lease
        for action in actions:
            match action:
                case Begin(_, lease):
                    self.begun.append((action, self._found[lease.first]))
                case Apply(_, parts, over_kept):
                    self._apply(parts, over_kept)
                case Discard(number, reason):
                    if number in self._flights:
                        self.host.ended([self._end(Part(number, 0.0, reason))])
                case Reissue(number):
                    del self._flights[number]

    def _apply(self, parts: tuple[Part, ...], over_kept: bool) -> None:
        examples = sum(self._flights[part.lease][1].count for part in parts)
        scale = self.host.rate(examples)
        pushes = [(self._pushes[part.lease], part.weight) for part in parts]
        self.server.apply_group(pushes, lr_scale=scale, over_kept=over_kept)
        self.host.ended([self._end(part) for part in parts])
        looking = time.perf_counter()
        if not self.host.stepped():
            self.stopped = True
        self._began += time.perf_counter() - looking  # events tell the time of training

    def _end(self, part: Part) -> Ended:
        worker, lease = self._flights.pop(part.lease)
        return Ended(worker, lease, self._found.pop(lease.first), self._pushes.pop(part.lease), part)
