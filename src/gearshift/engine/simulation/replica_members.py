"""The replicas of a simulated replica strategy: the workers of each, and the totals of its exchanges."""

from __future__ import annotations

from typing import Protocol

from gearshift.parameters.replicas.figures import Counts
from gearshift.sync.exchange import Choices


class ReplicaLearning(Protocol):
    """The events of replicas, for an engine without real replicas."""

    def join(self, worker: int) -> None: ...

    def leave(self, worker: int) -> None: ...

    def idle(self, worker: int) -> None:
        """The worker has no work left."""

    def send(self, replica: int) -> None:
        """Its weights are copied: an exchange begins."""

    def receive(self, replicas: tuple[int, ...]) -> None:
        """The exchange of these replicas ends: a single replica with the centre, or all with each other."""

    def meet(self) -> None:
        """All replicas merge in the training loop."""


class ReplicaMembers:
    """From a switch to a replica strategy to the next switch."""

    def __init__(self, choices: Choices, counts: dict[int, Counts]) -> None:
        self._choices, self._counts = choices, counts
        self.workers: dict[int, set[int]] = {}  # present workers, by replica
        self.steps: dict[int, int] = {}  # of each replica
        self.in_flight: set[int] = set()  # replicas whose exchange is in flight
        self.over = False  # another strategy has taken over; exchanges in flight have no effect
        self._idle: set[int] = set()
        self._steps_before: dict[int, int] = {}  # the last exchange, by replica

    def __contains__(self, replica: int) -> bool:
        """Whether this replica still exchanges."""
        return replica in self.workers and not self.over

    def __len__(self) -> int:
        return len(self.workers)

    def join(self, worker: int) -> bool:
        """Whether it is the first of its replica."""
        replica = self._choices.replica_of(worker)
        first = replica not in self.workers
        self.workers.setdefault(replica, set()).add(worker)
        self._idle.discard(worker)
        self._counts.setdefault(replica, Counts())
        self.steps.setdefault(replica, 0)
        return first

    def leave(self, worker: int) -> None:
        replica = self._choices.replica_of(worker)
        workers = self.workers.get(replica, set())
        workers.discard(worker)
        if not workers:
            self.workers.pop(replica, None)

    def idle(self, worker: int) -> None:
        self._idle.add(worker)

    def begins(self, worker: int) -> None:
        self._idle.discard(worker)

    def step(self, replica: int) -> None:
        self.steps[replica] += 1
        self._counts[replica].stepped(replica in self.in_flight)

    def count_exchange(self, replica: int, moved: float) -> None:
        before, self._steps_before[replica] = self._steps_before.get(replica, 0), self.steps[replica]
        finished = self.workers[replica] <= self._idle and before == self.steps[replica]
        self._counts[replica].exchanged(moved, counts=not finished)
