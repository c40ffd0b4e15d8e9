"""The workers of a simulated cluster: they join, request work, compute for the time drawn by the cluster model, die and
return.

Their events go to `report`. A dead worker counts as alive until its absence is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

from gearshift.cluster_model.cluster import ClusterModel
from gearshift.cluster_model.durations import Absence, worker_times
from gearshift.engine.simulation.dense_traffic import DenseTraffic
from gearshift.engine.simulation.shared_cores import SharedCores
from gearshift.engine.simulation.virtual_time import VirtualTime
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Begin,
    Event,
    GradientArrived,
    GradientRefused,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)


class Gradients(Protocol):
    """What happens to the gradients that workers compute."""

    def arrive(self, worker: int, lease: int) -> str | None:
        """The gradient is with the servers now; a reason if it cannot be used."""


class SimulatedWorkers:
    def __init__(
        self,
        cluster: ClusterModel,
        time: VirtualTime,
        coordinator: Coordinator,
        traffic: DenseTraffic,
        gradients: Gradients | None,
        report: Callable[[Event], None],
    ) -> None:
        self._cluster, self._time, self._coordinator = cluster, time, coordinator
        self._traffic, self._gradients, self._report = traffic, gradients, report
        self._pull, self._push = cluster.network.pull, cluster.network.push
        self._times = worker_times(cluster)
        self._begun = [0] * cluster.workers  # batches
        self._lease: list[int | None] = [None] * cluster.workers  # what it computes, if it is alive
        self._there = [False] * cluster.workers
        self._absences = [times.absences() for times in self._times]
        self._absence = [
            next(absences, None) for absences in self._absences
        ]  # the current or the next absence
        self._idle_since: dict[int, float] = {}
        self._idle = 0.0
        self._cores = SharedCores(cluster.cores) if cluster.cores is not None else None
        self._on_cores: dict[
            int, tuple[int, float, float]
        ] = {}  # by lease: worker, CPU seconds, earliest start

    def start(self) -> None:
        for worker, absence in enumerate(self._absence):
            if absence is None or absence.start > 0:
                self._come(worker)
                self._plan(absence, worker)
            else:
                self._time.set(absence.end, self._return, worker, 0)

    @property
    def all_gone(self) -> bool:
        return not any(self._there)

    def idle_seconds(self) -> float:
        """Of all workers, up to now."""
        return self._idle + sum(self._time.now - since for since in self._idle_since.values())

    # ---- the life of a worker ----

    def _come(self, worker: int) -> None:
        self._there[worker] = True
        if self._traffic.exchanges is not None:
            self._traffic.exchanges.join(worker)
        self._report(WorkerJoined(worker, self._time.now))
        self._ask(worker)

    def _ask(self, worker: int) -> None:
        self._idle_since[worker] = self._time.now
        self._report(WorkRequested(worker, self._time.now))
        work = self._coordinator.work
        if self._traffic.exchanges is not None and work.exhausted and worker in work.parked:
            self._traffic.exchanges.idle(worker)

    def _ask_after_exchange(self, worker: int, _: int) -> None:
        if self._there[worker] and self._lease[worker] is None and worker not in self._idle_since:
            self._ask(worker)

    def begin(self, begin: Begin, not_before: float) -> None:
        """A step by all-reduce ends later than it is decided: work does not begin before `not_before`."""
        worker, lease = begin.worker, begin.lease
        if not self._there[worker]:
            return  # it is dead, but this has not been noticed yet
        now = max(self._time.now, not_before)
        self._idle += now - self._idle_since.pop(worker)
        self._lease[worker] = lease.number
        n = self._begun[worker]
        self._begun[worker] = n + 1
        start = now + self._pull + self._traffic.seconds
        if self._traffic.exchanges is not None:
            self._traffic.exchanges.begins(worker)
        seconds = self._times[worker].seconds(n, lease.count, start)
        if self._cores is None:
            arrives = start + seconds + self._push + self._traffic.seconds
            self._time.set(arrives, self._arrive, worker, lease.number)
        else:
            cpu = self._cluster.cpu.seconds(lease.count) if self._cluster.cpu else seconds
            self._on_cores[lease.number] = (worker, cpu, start + seconds)
            self._time.set(start, self._compute, worker, lease.number)

    def _arrive(self, worker: int, lease: int) -> None:
        if self._lease[worker] != lease:
            return  # the worker died during the computation
        self._lease[worker] = None
        refused = self._gradients.arrive(worker, lease) if self._gradients is not None else None
        now = self._time.now
        if refused is None:
            self._report(GradientArrived(worker, lease, now))
        else:
            self._report(GradientRefused(worker, lease, refused, now))
        exchanges = self._traffic.exchanges  # the event may have changed the strategy
        ready = now if exchanges is None else exchanges.stepped(worker)
        if ready > now:
            self._time.set(ready, self._ask_after_exchange, worker, 0)
        else:
            self._ask(worker)

    # ---- shared cores ----

    @property
    def next_end(self) -> float:
        """When the next computation on shared cores ends."""
        return inf if self._cores is None else self._cores.next_end()

    def end_computation(self, at: float) -> None:
        assert self._cores is not None
        self._time.now = at
        lease = self._cores.pop(at)
        worker, _, waiting_over = self._on_cores.pop(lease)
        arrives = max(at, waiting_over) + self._push + self._traffic.seconds
        self._time.set(arrives, self._arrive, worker, lease)

    def _compute(self, worker: int, lease: int) -> None:
        if self._cores is not None and self._lease[worker] == lease:
            self._cores.add(lease, self._on_cores[lease][1], self._time.now)

    # ---- absences ----

    def _plan(self, absence: Absence | None, worker: int) -> None:
        if absence is not None:
            self._time.set(absence.start, self._go, worker, 0)

    def _go(self, worker: int, _: int) -> None:
        absence, now = self._absence[worker], self._time.now
        assert absence is not None
        self._there[worker] = False
        self._idle += now - self._idle_since.pop(worker, now)
        lease, self._lease[worker] = self._lease[worker], None
        if self._cores is not None and lease in self._on_cores:
            del self._on_cores[lease]
            self._cores.remove(lease, now)
        self._time.set(min(now + absence.notice, absence.end), self._lost, worker, 0)
        self._time.set(absence.end, self._return, worker, 0)

    def _lost(self, worker: int, _: int) -> None:
        absence = self._absence[worker]
        assert absence is not None
        if self._traffic.exchanges is not None:
            self._traffic.exchanges.leave(worker)
        self._report(WorkerLost(worker, absence.reason, self._time.now))

    def _return(self, worker: int, _: int) -> None:
        self._absence[worker] = absence = next(self._absences[worker], None)
        self._come(worker)
        self._plan(absence, worker)
