"""Drives one strategy over the work of one epoch: an event in, the resulting actions out, in order.

It keeps the record (`Work`) and lets the strategy decide. It has no clock and no tensors, so the same events give the
same actions in a thread, in a simulator and from a log. A switch replaces the strategy and nothing else: leases in
flight and waiting gradients stay. Repeated events have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, assert_never

from gearshift.sync.events import (
    Action,
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
    Reissue,
    Supplied,
    SwitchRequested,
    TimePassed,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.flight import Flight
from gearshift.sync.replicated import Replicated
from gearshift.sync.strategy import Copying, Strategy
from gearshift.sync.work import Work

MakeStrategy = Callable[[str, dict[str, Any]], Strategy]


class Coordinator:
    def __init__(
        self, strategy: Strategy, make: MakeStrategy, *, step: int = 0, first_lease: int = 0
    ) -> None:
        self.strategy, self.work, self._make = strategy, Work(step), make
        self.work.supply.next_number = first_lease

    def handle(self, event: Event) -> list[Action]:
        """All actions that follow from this event, in the order of execution."""
        self.work.at = event.at
        actions = list(self._take(event))
        actions.extend(self._steps())
        actions.extend(self._exchange())
        actions.extend(self._starts())
        actions.extend(self._copies())
        return actions

    @property
    def hungry(self) -> bool:
        """Whether a worker waits for work and no examples are supplied."""
        work = self.work
        return bool(work.parked) and not work.supply and not work.exhausted

    @property
    def wakes_at(self) -> float | None:
        """When `TimePassed` may have a consequence although nothing else happens; None: never."""
        strategy, work = self.strategy, self.work
        if not isinstance(strategy, Copying) or work.merges.under_way or not work.parked or not work.flying:
            return None
        return strategy.copies_at(work)

    def _take(self, event: Event) -> Iterator[Action]:
        work = self.work
        match event:
            case WorkerJoined(worker):
                if worker in work.pace.counts:  # it has restarted and forgotten its leases and requests
                    yield from self._end_leases(worker, "its worker joined again")
                    work.unpark(worker)
                else:
                    work.join(worker)
            case WorkRequested(worker):
                if worker in work.pace.counts:  # a worker that was declared lost must join again
                    work.park(worker)
            case GradientArrived(worker, lease, version=version):
                yield from self._arrived(worker, lease, version)
            case GradientRefused(worker, lease, reason):
                if self._holds(worker, lease):
                    yield self._discard(worker, lease, reason)
                else:
                    work.copies.dropped.pop(lease, None)
            case WorkerLost(worker, reason):
                if worker in work.pace.counts:
                    yield from self._end_leases(worker, reason)
                    work.leave(worker)
            case Supplied(first, count, batch):
                work.supply.add(first, count, batch)
            case DataExhausted():
                work.exhausted = True
            case SwitchRequested(strategy, settings):
                self.strategy = self._make(strategy, settings)
                work.switch(self.strategy.batch, event.at)
            case ExchangeDone(number):
                work.merges.end(number, event.at)
            case TimePassed():
                pass
            case _:
                assert_never(event)

    def _holds(self, worker: int, lease: int) -> bool:
        return lease in self.work.flights_of.get(worker, ())

    def _arrived(self, worker: int, lease: int, version: int) -> Iterator[Action]:
        work = self.work
        if not self._holds(worker, lease):
            if (dropped := work.copies.dropped.pop(lease, None)) is not None:
                self._note_speed(dropped)
            elif lease not in work.waiting:  # a repeated gradient has no effect
                yield Discard(lease, "its lease had ended before it arrived", ended_before=True)
            return
        flight = work.flight(lease)
        self._note_speed(flight)
        late = self.strategy.refuse(work, flight)
        if late:
            yield self._discard(worker, lease, late)
            return
        if lease in work.copies.original_of:
            work.promote(lease)
        if lease in work.copies.by_original:
            yield self._end_copy(lease, "another worker has computed its examples")
        work.arrive(lease, version)
        work.pace.advance(worker)

    def _note_speed(self, flight: Flight) -> None:
        work = self.work
        seconds, step = work.at - flight.began, self.strategy.global_batch
        work.speeds.note(flight.worker, flight.lease.count, seconds, step)

    def _discard(self, worker: int, lease: int, reason: str) -> Discard | Duplicate:
        """The gradient counts as delivered, so that a worker with unusable gradients does not hold others back."""
        self.work.pace.advance(worker)
        if (end := self._leave_to_copy(lease, reason)) is not None:
            return end
        self.work.land(lease)
        return Discard(lease, reason)

    def _end_leases(self, worker: int, reason: str) -> Iterator[Action]:
        """The worker will not deliver its leases: they are reissued, except those that another worker computes too."""
        for lease in sorted(self.work.flights_of[worker]):
            if (end := self._leave_to_copy(lease, reason)) is not None:
                yield end
                continue
            flight = self.work.land(lease)
            self.work.supply.give_back(flight.lease)
            yield Reissue(flight.lease.number, reason)
        self.work.copies.forget(worker)

    def _leave_to_copy(self, lease: int, reason: str) -> Duplicate | None:
        """Ends the lease if another worker computes its examples too."""
        copies = self.work.copies
        if lease in copies.by_original:
            self.work.promote(copies.by_original[lease].lease.number)
        if lease not in copies.original_of:
            return None
        self.work.drop_copy(copies.original_of[lease])
        return Duplicate(lease, reason)

    def _end_copy(self, original: int, reason: str) -> Duplicate:
        """The copy is not needed. Its worker continues with it, and its time will count."""
        copy = self.work.drop_copy(original)
        self.work.copies.dropped[copy.lease.number] = copy
        return Duplicate(copy.lease.number, reason)

    def _steps(self) -> Iterator[Action]:
        work = self.work
        while step := self.strategy.form(work):
            if not step.parts or not all(part.weight >= 0 for part in step.parts):
                raise ValueError("a step needs at least one gradient, and no weight may be negative or NaN")
            work.take_waiting(tuple(p.lease for p in step.parts))
            work.step += 1
            work.stepped_at = work.at
            yield Apply(work.step, step.parts, step.over_kept, step.dense_rate)

    def _exchange(self) -> Iterator[Action]:
        strategy, work = self.strategy, self.work
        if isinstance(strategy, Replicated) and not work.merges.under_way and strategy.merge_due(work):
            yield Exchange(work.merges.begin())

    def _starts(self) -> Iterator[Action]:
        work = self.work
        while (
            not work.merges.under_way and work.parked and work.supply and (start := self.strategy.start(work))
        ):
            flight = work.begin(start.worker, start.token, start.size)
            yield Begin(start.worker, flight.lease, start.token, flight.version, start.extrapolation)

    def _copies(self) -> Iterator[Action]:
        strategy, work = self.strategy, self.work
        if not isinstance(strategy, Copying):
            return
        while not work.merges.under_way and work.parked and work.flying and (copy := strategy.copy(work)):
            flight = work.begin_copy(copy.worker, copy.lease, copy.token)
            yield Begin(copy.worker, flight.lease, copy.token, flight.version)


def state(coordinator: Coordinator) -> dict[str, Any]:
    """The complete state of a coordinator as JSON values: to print, compare or log."""
    work = coordinator.work

    def flights(of: dict[int, Any]) -> list[dict[str, Any]]:
        return [
            {
                "lease": lease_state(f.lease),
                "worker": f.worker,
                "token": f.token,
                "version": f.version,
                "began": f.began,
            }
            for f in of.values()
        ]

    return {
        "strategy": coordinator.strategy.name,
        "settings": asdict(coordinator.strategy),
        "step": work.step,
        "exhausted": work.exhausted,
        "parked": list(work.parked),
        "flying": flights(work.flying),
        "waiting": flights(work.waiting),
        "copies": flights(work.copies.by_original),
        "dropped": flights(work.copies.dropped),
        "delivered": {str(worker): count for worker, count in work.pace.counts.items()},
        "supply": [*map(lease_state, work.supply.returned), *map(list, work.supply.ranges)],
        "next_lease": work.supply.next_number,
        "adopted_before": work.adopted_before,
        "adopted_step": work.adopted_step,
        "step_examples": work.step_examples,
        "merges": work.merges.count,
        "merged_at": work.merges.at,
        "merging": work.merges.under_way,
    }


def lease_state(lease: Lease) -> list[int]:
    return [lease.number, lease.first, lease.count, lease.attempt]
