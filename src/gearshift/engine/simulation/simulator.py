"""A cluster in virtual time: a heap of events drives the coordinator that real runs have, and no second passes.

Workers join, ask, compute for the time that the cluster model draws, and their gradients arrive; they die, leave
and come back. With no `Learning` it is timing only; with one, real gradients are computed on the parameters that
the worker would have had. The same cluster, strategy and seed give the same events and the same actions.

At one instant the order is that in which things were set down. Examples are supplied a global batch at a time,
when they are wanted, so a strategy that takes over can cut what is left in its own way.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from gearshift.cluster_model.closed_forms import possible_rate
from gearshift.cluster_model.cluster import ClusterModel
from gearshift.cluster_model.durations import Absence, worker_times
from gearshift.engine.simulation.exchanges import Exchanges, ReplicaLearning
from gearshift.engine.simulation.shared_cores import SharedCores
from gearshift.engine.simulation.tally import Outcome, Tally
from gearshift.errors import UserError
from gearshift.parameters.replicas.figures import Counts, summary
from gearshift.sync.automatic import Automatic, Proposal
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import (
    Action,
    Apply,
    Begin,
    DataExhausted,
    Event,
    Exchange,
    ExchangeDone,
    GradientArrived,
    GradientRefused,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.sync.synchronous import Sync


class Learning(Protocol):
    """What the gradients are, for an engine that knows none. Calls come in the order of virtual time."""

    def switched(self, strategy: Strategy) -> ReplicaLearning | None:
        """This one decides from now on; told before anybody joins, too. Its replicas, if it has any."""

    def begin(self, begin: Begin) -> None:
        """The worker pulls now. The gradient may be computed here and kept, or from a private copy later."""

    def arrive(self, worker: int, lease: int) -> str | None:
        """The gradient is with the servers now; a reason if it cannot be used."""

    def act(self, action: Action) -> None:
        """`Apply`, `Discard` or `Reissue`, in the order decided. A step under a replica strategy is one gradient's."""


@dataclass(frozen=True, slots=True)
class SimulatedSwitch:
    """Another strategy decides from `seconds` on, or when so many `examples` are applied or discarded."""

    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    examples: int | None = None


HOPELESS = 50  # times the examples were begun in vain
Log = Callable[[Event, list[Action]], None]


def simulate(
    cluster: ClusterModel,
    strategy: Strategy,
    examples: int,
    *,
    switches: Iterable[SimulatedSwitch] = (),
    automatic: Automatic | None = None,
    learning: Learning | None = None,
    log: Log | None = None,
) -> Outcome:
    """Trains on `examples` examples, in virtual time; `automatic` may change the strategy as it sees fit."""
    simulation = Simulation(cluster, strategy, examples, switches, automatic, learning, log)
    if learning is not None:
        return simulation.run()
    with _no_collections():
        return simulation.run()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Timing only makes no reference cycles, and the collector would walk over all workers again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Simulation:
    def __init__(
        self,
        cluster: ClusterModel,
        strategy: Strategy,
        examples: int,
        switches: Iterable[SimulatedSwitch],
        automatic: Automatic | None,
        learning: Learning | None,
        log: Log | None,
    ) -> None:
        self.coordinator = Coordinator(strategy, make_strategy)
        self.cluster, self.examples, self.supplied = cluster, examples, 0
        self.learning, self.log, self.tally = learning, log, Tally(cluster.workers)
        self.automatic = automatic
        self._watching = automatic is not None
        self._proposal: Proposal | None = None
        self.now = self.last_step = 0.0
        self.events = 0
        self._batch = strategy.batch
        self._heap: list[tuple[float, int, Callable[[int, int], None], int, int]] = []
        self._order = 0
        self._times = worker_times(cluster)
        self._pull, self._push = cluster.network.pull, cluster.network.push
        self._all_reduce = cluster.network.sync_step(cluster.workers)
        self._exchanges: Exchanges | None = None
        self._counts: dict[int, Counts] = {}  # of each replica
        self._dense = 0.0  # seconds of the dense parameters, in a pull or a push
        self._begun = [0] * cluster.workers  # batches
        self._lease: list[int | None] = [None] * cluster.workers  # what it computes, if it lives
        self._there = [False] * cluster.workers
        self._absences = [times.absences() for times in self._times]
        self._absence = [next(absences, None) for absences in self._absences]  # the present or the next one
        self._idle_since: dict[int, float] = {}
        self._idle = 0.0
        self._cores = SharedCores(cluster.cores) if cluster.cores is not None else None
        self._on_cores: dict[int, tuple[int, float, float]] = {}  # by lease: worker, cpu seconds, not before
        planned = tuple(switches)
        self._at_seconds = [s for s in planned if s.examples is None]
        self._at_examples = deque(sorted((s for s in planned if s.examples is not None), key=_examples))

    def run(self) -> Outcome:
        self._take_over(self.coordinator.strategy)
        for i, switch in enumerate(self._at_seconds):
            self._set(switch.seconds or 0.0, self._switch, i, 0)
        for worker in range(self.cluster.workers):
            absence = self._absence[worker]
            if absence is None or absence.start > 0:
                self._come(worker)
                self._plan(absence, worker)
            else:
                self._set(absence.end, self._return, worker, 0)
        while not self.coordinator.work.done:
            self._next()
        return self._outcome()

    def _outcome(self) -> Outcome:
        still_idle = sum(self.now - since for since in self._idle_since.values())
        return self.tally.outcome(
            strategy=self.coordinator.strategy.name,
            seconds=self.last_step,
            events=self.events,
            idle_seconds=self._idle + still_idle,
            possible=possible_rate(self.cluster, self._batch, self.last_step),
            automatic=tuple(self.automatic.changes) if self.automatic else (),
            sync_gap=summary(self._counts.values(), elp=self._batch * self.cluster.workers),
        )

    # ---- time ----

    def _set(self, at: float, happen: Callable[[int, int], None], worker: int, what: int) -> None:
        if at < inf:
            self._order += 1
            heappush(self._heap, (at, self._order, happen, worker, what))

    def _next(self) -> None:
        """What comes next happens."""
        cores, heap = self._cores, self._heap
        if cores is not None and (end := cores.next_end()) < (heap[0][0] if heap else inf):
            self.now = end
            self._computed(cores.pop(end))
        elif heap:
            self.now, _, happen, worker, what = heappop(heap)
            happen(worker, what)
        else:
            raise UserError(self._stuck())

    def _stuck(self) -> str:
        left = f"{self.examples - self.tally.ended:,} of {self.examples:,} examples are not trained"
        if not any(self._there):
            return f"every worker has left for good, and {left}; let one come back"
        return f"{self.coordinator.strategy.name} lets nobody begin at {self.now:g} s, and {left}"

    # ---- events ----

    def _tell(self, event: Event) -> None:
        """An event, and those that follow from it at once."""
        self._handle(event)
        while (following := self._following()) is not None:
            self._handle(following)

    def _handle(self, event: Event) -> None:
        self.events += 1
        actions = self.coordinator.handle(event)
        if self.log is not None:
            self.log(event, actions)
        if self.automatic is not None and self._watching:
            self._proposal = self.automatic.observe(event, actions, self.coordinator.strategy.name)
        switched = isinstance(event, SwitchRequested)
        for action in actions:
            if switched and isinstance(action, Begin):
                switched = self._take_over(self.coordinator.strategy)
            self._carry_out(action)
        if switched:
            self._take_over(self.coordinator.strategy)

    def _take_over(self, strategy: Strategy) -> bool:
        """Another strategy decides: replicas end or begin, after what waited has formed its steps."""
        choices = choices_of(strategy)
        in_pulls = choices is None and not isinstance(strategy, Sync)
        self._dense = self.cluster.network.dense if in_pulls else 0.0
        if self._exchanges is not None:
            self._exchanges.over = True
        replicas = None if self.learning is None else self.learning.switched(strategy)
        self._exchanges = None
        if choices is not None:
            network, clock = self.cluster.network, lambda: self.now
            self._exchanges = Exchanges(choices, network, clock, self._set, self._counts, replicas)
            for worker in self.coordinator.work.pace.counts:
                self._exchanges.join(worker, self.now)
        return False

    def _following(self) -> Event | None:
        work = self.coordinator.work
        if self._proposal is not None:
            return self._proposed(self._proposal)
        if self._at_examples and self.tally.ended >= _examples(self._at_examples[0]):
            return self._planned(self._at_examples.popleft())
        if self.supplied < self.examples:
            return None if work.supply or not work.parked else self._next_examples()
        return None if work.exhausted else DataExhausted(self.now)

    def _proposed(self, proposal: Proposal) -> SwitchRequested:
        strategy = self.coordinator.strategy
        sizes = {"global_batch": strategy.global_batch, "batch": strategy.batch}
        return SwitchRequested(proposal.strategy, {**sizes, **proposal.settings}, proposal.reason, self.now)

    def _next_examples(self) -> Supplied:
        """A global batch, or a little more if it does not divide: no short lease inside the data."""
        strategy = self.coordinator.strategy
        leases = -(-strategy.global_batch // strategy.batch)
        first, count = self.supplied, min(leases * strategy.batch, self.examples - self.supplied)
        self.supplied += count
        return Supplied(first, count, strategy.batch, self.now)

    def _switch(self, i: int, _: int) -> None:
        self._tell(self._planned(self._at_seconds[i]))

    def _planned(self, switch: SimulatedSwitch) -> SwitchRequested:
        """It ends `auto`, as in a real run: whoever planned it knows better."""
        self._watching = False
        return SwitchRequested(switch.strategy, switch.settings, "as scheduled", self.now)

    # ---- a worker's way ----

    def _come(self, worker: int) -> None:
        self._there[worker] = True
        if self._exchanges is not None:
            self._exchanges.join(worker, self.now)
        self._tell(WorkerJoined(worker, self.now))
        self._ask(worker)

    def _ask(self, worker: int) -> None:
        self._idle_since[worker] = self.now
        self._tell(WorkRequested(worker, self.now))
        work = self.coordinator.work
        if self._exchanges is not None and work.exhausted and worker in work.parked:
            self._exchanges.idle(worker)

    def _ask_after_exchange(self, worker: int, _: int) -> None:
        if self._there[worker] and self._lease[worker] is None and worker not in self._idle_since:
            self._ask(worker)

    def _begin(self, begin: Begin) -> None:
        if self.learning is not None:
            self.learning.begin(begin)
        worker, lease = begin.worker, begin.lease
        if not self._there[worker]:
            return  # it is dead, and nobody knows yet
        now = max(self.now, self.last_step)  # a step by all-reduce ends later than it is decided
        self._idle += now - self._idle_since.pop(worker)
        self._lease[worker] = lease.number
        n = self._begun[worker]
        self._begun[worker] = n + 1
        start = now + self._pull + self._dense
        if self._exchanges is not None:
            self._exchanges.begins(worker)
        seconds = self._times[worker].seconds(n, lease.count, start)
        if self._cores is None:
            self._set(start + seconds + self._push + self._dense, self._arrive, worker, lease.number)
        else:
            cpu = self.cluster.cpu.seconds(lease.count) if self.cluster.cpu else seconds
            self._on_cores[lease.number] = (worker, cpu, start + seconds)
            self._set(start, self._compute, worker, lease.number)

    def _compute(self, worker: int, lease: int) -> None:
        if self._cores is not None and self._lease[worker] == lease:
            self._cores.add(lease, self._on_cores[lease][1], self.now)

    def _computed(self, lease: int) -> None:
        worker, _, waiting_over = self._on_cores.pop(lease)
        self._set(max(self.now, waiting_over) + self._push + self._dense, self._arrive, worker, lease)

    def _arrive(self, worker: int, lease: int) -> None:
        if self._lease[worker] != lease:
            return  # the worker died over it
        self._lease[worker] = None
        refused = self.learning.arrive(worker, lease) if self.learning is not None else None
        if refused is None:
            self._tell(GradientArrived(worker, lease, self.now))
        else:
            self._tell(GradientRefused(worker, lease, refused, self.now))
        ready = self.now if self._exchanges is None else self._exchanges.stepped(worker, self.now)
        if ready > self.now:
            self._set(ready, self._ask_after_exchange, worker, 0)
        else:
            self._ask(worker)

    def _plan(self, absence: Absence | None, worker: int) -> None:
        if absence is not None:
            self._set(absence.start, self._go, worker, 0)

    def _go(self, worker: int, _: int) -> None:
        absence = self._absence[worker]
        assert absence is not None
        self._there[worker] = False
        self._idle += self.now - self._idle_since.pop(worker, self.now)
        lease, self._lease[worker] = self._lease[worker], None
        if self._cores is not None and lease in self._on_cores:
            del self._on_cores[lease]
            self._cores.remove(lease, self.now)
        self._set(min(self.now + absence.notice, absence.end), self._lost, worker, 0)
        self._set(absence.end, self._return, worker, 0)

    def _lost(self, worker: int, _: int) -> None:
        absence = self._absence[worker]
        assert absence is not None
        if self._exchanges is not None:
            self._exchanges.leave(worker)
        self._tell(WorkerLost(worker, absence.reason, self.now))
        if self.tally.reissued > HOPELESS * self.examples:
            raise UserError(
                f"workers die before they finish a batch: after {self.now:g} s {self.tally.ended:,} of "
                f"{self.examples:,} examples are trained; let them live longer, or make batches smaller"
            )

    def _return(self, worker: int, _: int) -> None:
        self._absence[worker] = absence = next(self._absences[worker], None)
        self._come(worker)
        self._plan(absence, worker)

    # ---- actions ----

    def _carry_out(self, action: Action) -> None:
        self.tally.count(action)
        if isinstance(action, Begin):
            self._begin(action)
            return
        if isinstance(action, Exchange):
            assert self._exchanges is not None
            self._set(self.now + self._exchanges.meeting(), self._met, 0, action.number)
            return
        if isinstance(action, Apply):
            by_all_reduce = isinstance(self.coordinator.strategy, Sync)  # the others push and pull
            self.last_step = self.now + (self._all_reduce if by_all_reduce else 0.0)
        if self.learning is not None:
            self.learning.act(action)

    def _met(self, _: int, number: int) -> None:
        if self._exchanges is not None and self.coordinator.work.merging:
            self._exchanges.met()
        self._tell(ExchangeDone(number, self.now))


def _examples(switch: SimulatedSwitch) -> int:
    assert switch.examples is not None
    return switch.examples
