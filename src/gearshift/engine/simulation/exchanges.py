"""Exchanges of replicas in virtual time: when each begins and ends, over links and sync servers of bounded speed.

With a centre, an exchange carries the dense parameters there and back over the trainer's own link and through the sync
servers, which serve one after the other; each server has a share of the parameters, so n servers are n times as fast.
The mean of all takes a ring over the trainers' links, and begins when the one before it has ended. In the background
trainers compute meanwhile; in the training loop they wait. Knows no gradient: whoever learns (`ReplicaLearning`) is
told when weights are copied and when they are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gearshift.cluster_model.cluster import Network
from gearshift.parameters.replicas.figures import Counts, both_ways, by_all_reduce
from gearshift.sync.exchange import Background, Choices, EverySeconds, EverySteps

AN_INSTANT = 0.01  # seconds
BUFFERS = {"params": 1, "frozen_v": 2, "params_m_v": 3}  # that a merge averages


class ReplicaLearning(Protocol):
    """What replicas do, for an engine that knows none."""

    def join(self, worker: int) -> None: ...

    def leave(self, worker: int) -> None: ...

    def idle(self, worker: int) -> None:
        """There is nothing left for it to do."""

    def send(self, replica: int) -> None:
        """Its weights are copied: an exchange begins."""

    def receive(self, replicas: tuple[int, ...]) -> None:
        """The exchange of these ends: with the centre if it is one, with each other if they are all."""

    def meet(self) -> None:
        """All replicas merge in the training loop."""


SetDown = Callable[
    [float, Callable[[int, int], None], int, int], None
]  # at, what happens, two numbers for it


class Exchanges:
    """The replicas of one replica strategy, from a switch to it to the next switch."""

    def __init__(
        self,
        choices: Choices,
        network: Network,
        clock: Callable[[], float],
        set_down: SetDown,
        counts: dict[int, Counts],
        learning: ReplicaLearning | None,
    ) -> None:
        self.choices, self.network, self.learning = choices, network, learning
        self._clock, self._set_down, self.counts = clock, set_down, counts
        self._workers: dict[int, set[int]] = {}  # that are there, by replica
        self._idle: set[int] = set()
        self._steps: dict[int, int] = {}  # of each replica
        self._given: dict[int, int] = {}  # of these, before its last exchange
        self._exchanged_at: dict[int, float] = {}
        self._in_flight: set[int] = set()
        self._servers_free_at = 0.0
        self._in_round = False
        self._members: tuple[int, ...] = ()  # of the round
        self.over = False  # another strategy has taken over; what is under way comes to nothing

    @property
    def background(self) -> bool:
        return isinstance(self.choices.trigger, Background)

    # ---- workers ----

    def join(self, worker: int, now: float) -> None:
        replica = self.choices.replica_of(worker)
        first = replica not in self._workers
        self._workers.setdefault(replica, set()).add(worker)
        self._idle.discard(worker)
        self.counts.setdefault(replica, Counts())
        self._steps.setdefault(replica, 0)
        self._exchanged_at.setdefault(replica, now)
        if self.learning is not None:
            self.learning.join(worker)
        if first and self.background:
            self._begin(replica, now)

    def leave(self, worker: int) -> None:
        replica = self.choices.replica_of(worker)
        workers = self._workers.get(replica, set())
        workers.discard(worker)
        if not workers:
            self._workers.pop(replica, None)
        if self.learning is not None:
            self.learning.leave(worker)

    def idle(self, worker: int) -> None:
        self._idle.add(worker)
        if self.learning is not None:
            self.learning.idle(worker)

    def begins(self, worker: int) -> None:
        self._idle.discard(worker)

    def stepped(self, worker: int, now: float) -> float:
        """A batch of this worker is through; when it may ask for the next."""
        replica = self.choices.replica_of(worker)
        if replica not in self._steps:
            return now  # it was lost before its step came
        self._steps[replica] += 1
        self.counts[replica].stepped(replica in self._in_flight)
        if self.choices.exchange != "centre" or self.background or not self._due(replica, now):
            return now
        self._exchanged_at[replica] = now
        end = self._send(replica, now)
        self._set_down(end, self._foreground_end, replica, 0)
        return end

    def _due(self, replica: int, now: float) -> bool:
        trigger = self.choices.trigger
        if isinstance(trigger, EverySteps):
            return self._steps[replica] % (trigger.steps * self.choices.workers_per_replica) == 0
        assert isinstance(trigger, EverySeconds)
        return now - self._exchanged_at[replica] >= trigger.seconds

    # ---- with the centre ----

    def _send(self, replica: int, now: float) -> float:
        """Begins an exchange with the centre; when it ends."""
        self._in_flight.add(replica)
        if self.learning is not None:
            self.learning.send(replica)
        network = self.network
        through = both_ways(network.dense_bytes) / (network.sync_servers * network.sync_bandwidth)
        self._servers_free_at = max(self._servers_free_at, now) + through
        return 2 * network.latency + max(now + 2 * network.dense, self._servers_free_at)

    def _end_centre(self, replica: int) -> None:
        self._in_flight.discard(replica)
        if replica in self._workers and not self.over:
            self._count(replica, both_ways(self.network.dense_bytes))
            if self.learning is not None:
                self.learning.receive((replica,))

    def _foreground_end(self, replica: int, _: int) -> None:
        self._end_centre(replica)

    # ---- in the background ----

    def _begin(self, replica: int, now: float) -> None:
        if self.choices.exchange == "centre":
            self._set_down(self._send(replica, now), self._shadow_end, replica, 0)
        elif not self._in_round:
            self._begin_round(now)

    def _shadow_end(self, replica: int, _: int) -> None:
        self._end_centre(replica)
        if replica in self._workers and not self.over:
            self._set_down(self._clock() + self._pause, self._shadow_again, replica, 0)

    def _shadow_again(self, replica: int, _: int) -> None:
        if replica in self._workers and not self.over:
            self._begin(replica, self._clock())

    def _begin_round(self, now: float) -> None:
        self._in_round = True
        self._members = tuple(sorted(self._workers))
        for replica in self._members:
            self._in_flight.add(replica)
            if self.learning is not None:
                self.learning.send(replica)
        self._set_down(now + self.network.reduce(len(self._members)), self._round_end, 0, 0)

    def _round_end(self, _: int, __: int) -> None:
        self._in_round = False
        self._in_flight.clear()
        there = () if self.over else tuple(r for r in self._members if r in self._workers)
        for replica in there:
            self._count(replica, by_all_reduce(self.network.dense_bytes, len(self._members)))
        if there and self.learning is not None:
            self.learning.receive(there)
        if self._workers and not self.over:
            self._set_down(self._clock() + self._pause, self._round_again, 0, 0)

    def _round_again(self, _: int, __: int) -> None:
        if self._workers and not self.over and not self._in_round:
            self._begin_round(self._clock())

    @property
    def _pause(self) -> float:
        """What takes no time at all would go on for ever at one instant."""
        trigger, network = self.choices.trigger, self.network
        assert isinstance(trigger, Background)
        in_a_round = network.reduce(max(1, len(self._workers)))
        with_servers = network.dense + network.latency + network.dense_bytes / network.sync_bandwidth
        takes = with_servers if self.choices.exchange == "centre" else in_a_round
        return max(trigger.pause, 0.0 if takes else AN_INSTANT)

    # ---- together, in the training loop ----

    def meeting(self) -> float:
        """Seconds that a merge of all takes."""
        return self.network.reduce(max(1, len(self._workers)), BUFFERS[self.choices.snapshot])

    def met(self) -> None:
        moved = BUFFERS[self.choices.snapshot] * by_all_reduce(
            self.network.dense_bytes, max(1, len(self._workers))
        )
        for replica in self._workers:
            self._count(replica, moved)
        if self.learning is not None:
            self.learning.meet()

    def _count(self, replica: int, moved: float) -> None:
        given, self._given[replica] = self._given.get(replica, 0), self._steps[replica]
        finished = self._workers[replica] <= self._idle and given == self._steps[replica]
        self.counts[replica].exchanged(moved, counts=not finished)
