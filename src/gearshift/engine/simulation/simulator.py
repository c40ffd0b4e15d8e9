"""A cluster in virtual time: a heap of events drives the coordinator that real runs have, and no second passes.

Workers join, request work, compute for the time that the cluster model draws, and their gradients arrive; they die,
leave and come back. Without `Learning` it simulates timing only; with one, real gradients are computed on the
parameters that the worker would have had. The same cluster, strategy and seed give the same events and the same
actions.

Events at the same time happen in the order in which they were scheduled. Examples are supplied on demand, a global
batch at a time, so a new strategy can divide the remaining examples in its own way.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Protocol

from gearshift.cluster_model.closed_forms import possible_rate
from gearshift.cluster_model.cluster import ClusterModel
from gearshift.engine.simulation.dense_traffic import DenseTraffic
from gearshift.engine.simulation.example_supply import ExampleSupply
from gearshift.engine.simulation.replica_members import ReplicaLearning
from gearshift.engine.simulation.simulated_workers import SimulatedWorkers
from gearshift.engine.simulation.switch_plan import SimulatedSwitch, SwitchPlan
from gearshift.engine.simulation.tally import Outcome, Tally
from gearshift.engine.simulation.virtual_time import VirtualTime
from gearshift.errors import UserError
from gearshift.parameters.replicas.figures import summary
from gearshift.sync.automatic import Automatic
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Event,
    Exchange,
    ExchangeDone,
    SwitchRequested,
    TimePassed,
    WorkerLost,
)
from gearshift.sync.registry import make_strategy
from gearshift.sync.strategy import Strategy
from gearshift.sync.synchronous import Sync


class Learning(Protocol):
    """Computes real gradients for the simulator, which has none itself. Calls come in the order of virtual time."""

    def switched(self, strategy: Strategy) -> ReplicaLearning | None:
        """This strategy decides from now on; also called before any worker joins. Returns its replicas, if any."""

    def begin(self, begin: Begin) -> None:
        """The worker pulls now. The gradient may be computed here and kept, or from a private copy later."""

    def arrive(self, worker: int, lease: int) -> str | None:
        """The gradient is with the servers now; a reason if it cannot be used."""

    def act(self, action: Action) -> None:
        """`Apply`, `Discard` or `Reissue`, in the order decided. A step under a replica strategy is one gradient's."""


HOPELESS = 50  # stops when reissued examples exceed this multiple of all examples
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
    """Trains on `examples` examples, in virtual time; `automatic` may change the strategy."""
    plan = SwitchPlan(switches, automatic)
    simulation = Simulation(cluster, strategy, ExampleSupply(examples), plan, learning, log)
    if learning is not None:
        return simulation.run()
    with _no_collections():
        return simulation.run()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pauses the garbage collector: timing alone creates no cycles, and scans of all workers are slow."""
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
        supply: ExampleSupply,
        plan: SwitchPlan,
        learning: Learning | None,
        log: Log | None,
    ) -> None:
        self._cluster, self._supply, self._plan, self._learning, self._log = (
            cluster,
            supply,
            plan,
            learning,
            log,
        )
        self._coordinator = Coordinator(strategy, make_strategy)
        self._tally, self._time = Tally(cluster.workers), VirtualTime()
        self._traffic = DenseTraffic(cluster.network, self._time)
        self._workers = SimulatedWorkers(
            cluster, self._time, self._coordinator, self._traffic, learning, self._report
        )
        self._last_step = 0.0
        self._wakes_at = -inf  # the last time that was planned
        self._events = 0
        self._batch = strategy.batch
        self._all_reduce = cluster.network.sync_step(cluster.workers)

    def run(self) -> Outcome:
        self._take_over(self._coordinator.strategy)
        for i, switch in enumerate(self._plan.at_seconds):
            self._time.set(switch.seconds or 0.0, self._switch, i, 0)
        self._workers.start()
        while not self._coordinator.work.done:
            self._next()
        return self._outcome()

    def _outcome(self) -> Outcome:
        return self._tally.outcome(
            strategy=self._coordinator.strategy.name,
            seconds=self._last_step,
            events=self._events,
            idle_seconds=self._workers.idle_seconds(),
            possible=possible_rate(self._cluster, self._batch, self._last_step),
            automatic=self._plan.changes,
            sync_gap=summary(self._traffic.counts.values(), elp=self._batch * self._cluster.workers),
        )

    def _next(self) -> None:
        """Processes the next event."""
        end, at = self._workers.next_end, self._time.next_at
        if end < at:
            self._workers.end_computation(end)
        elif at < inf:
            self._time.go_on()
        else:
            raise UserError(self._stuck())

    def _stuck(self) -> str:
        examples = self._supply.examples
        left = f"{examples - self._tally.ended:,} of {examples:,} examples are not trained"
        if self._workers.all_gone:
            return f"every worker has left permanently, and {left}; let at least one return"
        return f"{self._coordinator.strategy.name} lets no worker begin at {self._time.now:g} s, and {left}"

    # ---- events ----

    def _report(self, event: Event) -> None:
        """Processes an event and all that follow from it at the same time."""
        self._handle(event)
        while (following := self._following()) is not None:
            self._handle(following)
        if isinstance(event, WorkerLost):
            self._refuse_hopeless()
        self._plan_wake()

    def _plan_wake(self) -> None:
        """Time alone may let an idle worker begin."""
        at = self._coordinator.wakes_at
        if at is not None and at != self._wakes_at:
            self._wakes_at = at
            self._time.set(at, self._wake, 0, 0)

    def _wake(self, _: int, __: int) -> None:
        if self._time.now == self._wakes_at:
            self._report(TimePassed(self._time.now))

    def _following(self) -> Event | None:
        strategy, now = self._coordinator.strategy, self._time.now
        switch = self._plan.next(strategy, self._tally.ended, now)
        return switch or self._supply.next(strategy, self._coordinator.work, now)

    def _refuse_hopeless(self) -> None:
        examples = self._supply.examples
        if self._tally.reissued > HOPELESS * examples:
            raise UserError(
                f"workers die before they finish a batch: after {self._time.now:g} s {self._tally.ended:,} of "
                f"{examples:,} examples are trained; let them live longer, or make batches smaller"
            )

    def _handle(self, event: Event) -> None:
        self._events += 1
        actions = self._coordinator.handle(event)
        if self._log is not None:
            self._log(event, actions)
        self._plan.observe(event, actions, self._coordinator.strategy.name)
        switched = isinstance(event, SwitchRequested)
        for action in actions:
            if switched and isinstance(action, Begin):
                self._take_over(self._coordinator.strategy)
                switched = False
            self._carry_out(action)
        if switched:
            self._take_over(self._coordinator.strategy)

    def _take_over(self, strategy: Strategy) -> None:
        """Another strategy takes over: replicas end or begin, after waiting gradients have formed their steps."""
        replicas = None if self._learning is None else self._learning.switched(strategy)
        self._traffic.take_over(strategy, self._coordinator.work.pace.counts, replicas)

    def _switch(self, i: int, _: int) -> None:
        self._report(self._plan.planned(self._plan.at_seconds[i], self._time.now))

    # ---- actions ----

    def _carry_out(self, action: Action) -> None:
        self._tally.count(action)
        if isinstance(action, Begin):
            if self._learning is not None:
                self._learning.begin(action)
            self._workers.begin(action, not_before=self._last_step)
            return
        if isinstance(action, Exchange):
            assert self._traffic.exchanges is not None
            meets = self._time.now + self._traffic.exchanges.meeting()
            self._time.set(meets, self._met, 0, action.number)
            return
        if isinstance(action, Apply):
            by_all_reduce = isinstance(self._coordinator.strategy, Sync)  # the others push and pull
            self._last_step = self._time.now + (self._all_reduce if by_all_reduce else 0.0)
        if self._learning is not None:
            self._learning.act(action)

    def _met(self, _: int, number: int) -> None:
        if self._traffic.exchanges is not None and self._coordinator.work.merges.under_way:
            self._traffic.exchanges.met()
        self._report(ExchangeDone(number, self._time.now))
