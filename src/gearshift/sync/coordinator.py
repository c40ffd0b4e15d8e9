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
    Event,
    Exchange,
    ExchangeDone,
    GradientArrived,
    GradientRefused,
    Lease,
    Reissue,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.replicated import Replicated
from gearshift.sync.strategy import Strategy
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
        actions = list(self._take(event))
        self.work.at = event.at
        actions.extend(self._steps())
        actions.extend(self._exchange())
        actions.extend(self._starts())
        return actions

    def _take(self, event: Event) -> Iterator[Action]:
        work = self.work
        match event:
            case WorkerJoined(worker):
                if worker in work.pace.counts:  # it has restarted and forgotten its leases and requests
                    yield from self._reissue(worker, "its worker joined again")
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
            case WorkerLost(worker, reason):
                if worker in work.pace.counts:
                    yield from self._reissue(worker, reason)
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
            case _:
                assert_never(event)

    def _holds(self, worker: int, lease: int) -> bool:
        return lease in self.work.flights_of.get(worker, ())

    def _arrived(self, worker: int, lease: int, version: int) -> Iterator[Action]:
        work = self.work
        if not self._holds(worker, lease):
            if lease not in work.waiting:  # a repeated gradient has no effect
                yield Discard(lease, "its lease had ended before it arrived", ended_before=True)
            return
        late = self.strategy.refuse(work, work.flying[lease])
        if late:
            yield self._discard(worker, lease, late)
        else:
            work.arrive(lease, version)
            work.advance(worker)

    def _discard(self, worker: int, lease: int, reason: str) -> Discard:
        """The gradient counts as delivered, so that a worker with unusable gradients does not hold others back."""
        self.work.land(lease)
        self.work.advance(worker)
        return Discard(lease, reason)

    def _reissue(self, worker: int, reason: str) -> Iterator[Action]:
        for flight in self.work.drop_flights(worker):
            self.work.supply.give_back(flight.lease)
            yield Reissue(flight.lease.number, reason)

    def _steps(self) -> Iterator[Action]:
        work = self.work
        while step := self.strategy.form(work):
            if not step.parts or not all(part.weight >= 0 for part in step.parts):
                raise ValueError("a step needs at least one gradient, and no weight may be negative or NaN")
            work.take_waiting(tuple(p.lease for p in step.parts))
            work.step += 1
            yield Apply(work.step, step.parts, step.over_kept)

    def _exchange(self) -> Iterator[Action]:
        strategy, work = self.strategy, self.work
        if isinstance(strategy, Replicated) and not work.merges.under_way and strategy.merge_due(work):
            yield Exchange(work.merges.begin())

    def _starts(self) -> Iterator[Action]:
        work = self.work
        while (
            not work.merges.under_way and work.parked and work.supply and (start := self.strategy.start(work))
        ):
            flight = work.begin(start.worker, start.token)
            yield Begin(start.worker, flight.lease, start.token, flight.version)


def state(coordinator: Coordinator) -> dict[str, Any]:
    """The complete state of a coordinator as JSON values: to print, compare or log."""
    work = coordinator.work

    def flights(of: dict[int, Any]) -> list[dict[str, Any]]:
        return [
            {"lease": lease_state(f.lease), "worker": f.worker, "token": f.token, "version": f.version}
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
        "delivered": {str(worker): count for worker, count in work.pace.counts.items()},
        "supply": [*map(lease_state, work.supply.returned), *map(list, work.supply.ranges)],
        "next_lease": work.supply.next_number,
        "adopted_before": work.adopted_before,
        "merges": work.merges.count,
        "merged_at": work.merges.at,
        "merging": work.merges.under_way,
    }


def lease_state(lease: Lease) -> list[int]:
    return [lease.number, lease.first, lease.count, lease.attempt]
