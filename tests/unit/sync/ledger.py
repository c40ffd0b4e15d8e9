"""A coordinator with checks: every event passes through JSON, and after each the invariants of sync/ are verified.

The laws: a lease ends exactly once; an example is applied or discarded exactly once; the books are the sums they
claim to be; nobody waits without a cause; a strategy keeps its own bound; a replay gives the same. `World` adds
what a strategy sees of workers: who is alive, idle or at work.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from typing import Any, get_args

from gearshift.sync.coordinator import Coordinator, state
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
    Part,
    Reissue,
    Supplied,
    SwitchRequested,
    TimePassed,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.exchange import EverySeconds
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def as_json(message: Event | Action) -> dict[str, Any]:
    return {"kind": type(message).__name__, **asdict(message)}


def event_from_json(line: dict[str, Any]) -> Event:
    fields = dict(line)
    return _EVENTS[fields.pop("kind")](**fields)


class Ledger:
    def __init__(self, strategy: str, settings: dict[str, Any]) -> None:
        self.start = strategy, settings
        self.coordinator = Coordinator(make_strategy(strategy, settings), make_strategy)
        self.log: list[str] = []  # events, as lines of JSON
        self.answers: list[list[Action]] = []
        self.leases: dict[int, Lease] = {}
        self.ends: dict[int, str] = {}  # by lease
        self.ended_examples: Counter[int] = Counter()
        self.supplied = 0
        self.parts: list[Part] = []  # all that were in a step
        self.steps: list[int] = []  # the examples of each step

    @property
    def work(self) -> Any:
        return self.coordinator.work

    @property
    def strategy(self) -> Any:
        return self.coordinator.strategy

    def handle(self, event: Event) -> list[Action]:
        line = json.dumps(as_json(replace(event, at=float(len(self.log)))))  # a second passes between any two
        self.log.append(line)
        self.supplied += event.count if isinstance(event, Supplied) else 0
        actions = self.coordinator.handle(event_from_json(json.loads(line)))
        self.answers.append(actions)
        for action in actions:
            json.dumps(as_json(action))
            self._account(action)
        check_books(self.coordinator)
        check_waits(self.coordinator)
        return actions

    def _account(self, action: Action) -> None:
        match action:
            case Begin(_, lease, _, version):
                assert lease.number not in self.leases, "a number is never used twice"
                assert version == self.work.step, "steps come before beginnings, so none is missed"
                self.leases[lease.number] = lease
            case Apply(step, parts):
                self._account_step(step, parts)
            case Discard(lease, reason, ended_before):
                assert reason
                assert ended_before == (lease in self.ends)
                if not ended_before:
                    self._end(lease, "discarded")
            case Reissue(lease, reason):
                assert reason
                self._end(lease, "reissued")
            case Duplicate(lease, reason):
                assert reason
                self._end(lease, "duplicate")
            case Exchange(number):
                assert number == self.work.merges.count + 1, "they are numbered without a gap"
                assert not self.work.flying, "nobody computes while replicas meet"

    def _account_step(self, step: int, parts: tuple[Part, ...]) -> None:
        self.steps.append(sum(self.leases[part.lease].count for part in parts))
        self.parts.extend(parts)
        assert parts
        firsts = [self.leases[part.lease].first for part in parts]
        assert firsts == sorted(firsts), "gradients are summed in the order of their examples"
        assert step == len(self.steps)
        for part in parts:
            assert bool(part.weight) != bool(part.reason), "weight 0 has a reason, and nothing else has"
            adopted = part.lease < self.work.adopted_before
            assert self.strategy.name not in ("sync", "balanced") or adopted or part.staleness == 0
            self._end(part.lease, "applied" if part.weight else "discarded")

    def _end(self, lease: int, how: str) -> None:
        assert lease not in self.ends, f"lease {lease} ends again"
        self.ends[lease] = how
        if how in ("applied", "discarded"):
            of = self.leases[lease]
            self.ended_examples.update(range(of.first, of.first + of.count))

    def check_end(self) -> None:
        assert self.work.done
        assert self.ends.keys() == self.leases.keys()
        assert self.ended_examples == Counter(range(self.supplied))

    def check_replay(self) -> None:
        strategy, settings = self.start
        again = Coordinator(make_strategy(strategy, settings), make_strategy)
        assert [again.handle(event_from_json(json.loads(line))) for line in self.log] == self.answers
        assert json.dumps(state(again)) == json.dumps(state(self.coordinator))


def check_books(coordinator: Coordinator) -> None:
    """What is kept as a sum is the sum."""
    work, strategy = coordinator.work, coordinator.strategy
    flying, waiting = list(work.flying.values()), list(work.waiting.values())
    own = Counter[int]()
    for flight in flying:
        own[flight.token] += 0 if work.adopted(flight) else flight.lease.count
    assert work.flying_examples == sum(f.lease.count for f in flying)
    assert work.waiting_examples == sum(f.lease.count for f in waiting)
    assert work.flying_adopted == sum(f.lease.count for f in flying if work.adopted(f))
    assert dict(work.flying_for) == {token: n for token, n in own.items() if n}
    copies = work.copies.by_original
    under_way = [*flying, *copies.values()]
    held = {worker: {f.lease.number for f in under_way if f.worker == worker} for worker in work.pace.counts}
    assert work.flights_of == held
    assert work.copies.original_of == {copy.lease.number: original for original, copy in copies.items()}
    for original, copy in copies.items():
        of = work.flying[original].lease
        assert (of.first, of.count) == (copy.lease.first, copy.lease.count)
    counts = work.pace.counts
    assert not counts or work.pace.slowest == min(counts.values())
    assert {w: c for c, at in work.pace.parked_at.items() for w in at} == {w: counts[w] for w in work.parked}
    assert all(work.pace.parked_at.values())
    if strategy.name in ("async", "bounded_staleness", "ringmaster"):
        assert not waiting
    if strategy.name == "bounded_staleness":
        assert not counts or max(counts.values()) - min(counts.values()) <= strategy.bound + 1
    largest = max((f.lease.count for f in flying + waiting), default=0)
    assert work.waiting_examples < max(examples_of_a_step(strategy), strategy.batch) + largest or not waiting
    if all(f.lease.count == strategy.batch for f in waiting):
        assert len(waiting) <= -(-examples_of_a_step(strategy) // strategy.batch) + work.workers


def examples_of_a_step(strategy: Any) -> int:
    return getattr(strategy, "examples", strategy.global_batch)


def check_waits(coordinator: Coordinator) -> None:
    """Who has asked and got nothing has a cause to wait, and the cause goes away by itself."""
    work, strategy = coordinator.work, coordinator.strategy
    if work.merges.under_way:
        assert not work.flying
        return
    if not work.parked or not work.supply:
        return
    choices = choices_of(strategy)
    if choices is not None:
        assert choices.in_rounds, "who exchanges with a centre, or in the background, waits for nobody"
        slowest = {w for w, count in work.pace.counts.items() if count == work.pace.slowest}
        in_seconds = isinstance(choices.trigger, EverySeconds)
        assert work.flying if in_seconds else not slowest & work.parked.keys()
        return
    assert strategy.name not in ("async", "ringmaster", "buffered_async", "gba"), "here nobody waits"
    if strategy.name == "bounded_staleness":
        slowest = {w for w, count in work.pace.counts.items() if count == work.pace.slowest}
        assert not slowest & work.parked.keys()
    else:
        assert work.flying, "there is somebody to wait for"


class World(Ledger):
    """A ledger, and the workers around it."""

    def __init__(self, strategy: str, settings: dict[str, Any]) -> None:
        super().__init__(strategy, settings)
        self.alive: list[int] = []
        self.newcomers = 0
        self.lost_pushes: list[tuple[int, int]] = []  # (worker, lease) that can still come, late

    @property
    def flights(self) -> list[tuple[int, int]]:
        """Also of copies, and of copies that are not needed any more but are still computed."""
        under_way = (*self.work.flying.values(), *self.work.copies.by_original.values())
        return [(f.worker, f.lease.number) for f in (*under_way, *self.work.copies.dropped.values())]

    @property
    def idle(self) -> list[int]:
        busy = {worker for worker, _ in self.flights} | self.work.parked.keys()
        return [worker for worker in self.alive if worker not in busy]

    def join(self) -> int:
        worker, self.newcomers = self.newcomers, self.newcomers + 1
        self.alive.append(worker)
        self.handle(WorkerJoined(worker))
        return worker

    def join_again(self, worker: int) -> None:
        self.lost_pushes += [(worker, lease) for lease in sorted(self.work.flights_of[worker])]
        self.handle(WorkerJoined(worker))

    def ask(self, worker: int) -> None:
        self.handle(WorkRequested(worker))

    def arrive(self, worker: int, lease: int) -> list[Action]:
        return self.handle(GradientArrived(worker, lease))

    def refuse(self, worker: int, lease: int) -> None:
        self.handle(GradientRefused(worker, lease, "not finite"))

    def lose(self, worker: int) -> None:
        self.lost_pushes += [(worker, lease) for lease in sorted(self.work.flights_of[worker])]
        self.alive.remove(worker)
        self.handle(WorkerLost(worker, "it hung"))

    def supply(self, count: int, batch: int) -> None:
        self.handle(Supplied(self.supplied, count, batch))

    def exhaust(self) -> None:
        self.handle(DataExhausted())

    def switch(self, strategy: str, settings: dict[str, Any]) -> None:
        self.handle(SwitchRequested(strategy, settings))

    def wait(self) -> None:
        """So long that an idle worker may begin a copy."""
        self.handle(TimePassed())

    def exchanged(self) -> None:
        """Replicas have met; it is told twice, as over a network."""
        done = ExchangeDone(self.work.merges.count + 1)
        self.handle(done)
        assert not self.work.merges.under_way or self.work.merges.count == done.number
        self.handle(done)

    def finish(self) -> None:
        """Everything lands, the youngest first, and the run comes to its end by itself."""
        self.exhaust()
        if not self.alive:
            self.join()
        while not self.work.done:
            if self.work.merges.under_way:
                self.exchanged()
            for worker in self.idle:
                self.ask(worker)
            at_work = self.flights or self.work.merges.under_way
            assert self.work.done or at_work, "a deadlock: work is left and nobody is at it"
            for worker, lease in reversed(self.flights):
                self.arrive(worker, lease)
        self.check_end()
        self.check_replay()
