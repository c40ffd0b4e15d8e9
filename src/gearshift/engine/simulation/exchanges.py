"""Exchanges of replicas in virtual time: when each begins and ends, over links and sync servers of bounded speed.

With a centre, an exchange carries the dense parameters there and back over the trainer's own link and through the sync
servers, which serve exchanges one after the other; each server has a share of the parameters, so n servers are n times
as fast. The mean of all is a ring all-reduce over the trainers' links, and begins when the previous one has ended.
During a background exchange trainers continue to compute; in the training loop they wait. No gradients here:
`ReplicaLearning` is notified when weights are copied and when they are merged.
"""

from __future__ import annotations

from gearshift.cluster_model.cluster import Network
from gearshift.engine.simulation.replica_members import ReplicaLearning, ReplicaMembers
from gearshift.engine.simulation.virtual_time import VirtualTime
from gearshift.parameters.replicas.figures import Counts, both_ways, by_all_reduce
from gearshift.sync.exchange import Background, Choices, EverySeconds, EverySteps

AN_INSTANT = 0.01  # seconds
BUFFERS = {"params": 1, "frozen_v": 2, "params_m_v": 3}  # number of buffers that a merge averages


def pause_after(trigger: Background, takes: float) -> float:
    """The pause between two exchanges of this duration. Without it, instant exchanges would loop forever."""
    return max(trigger.pause, 0.0 if takes else AN_INSTANT)


class CentreExchanges:
    """Exchanges of one trainer with the centre, in the training loop or in the background."""

    def __init__(
        self,
        choices: Choices,
        network: Network,
        time: VirtualTime,
        members: ReplicaMembers,
        learning: ReplicaLearning | None,
    ) -> None:
        self._choices, self._network, self._time = choices, network, time
        self._members, self._learning = members, learning
        self._servers_free_at = 0.0

    def begin(self, replica: int) -> float:
        """Begins an exchange in the training loop. Returns when it ends."""
        end = self._send(replica)
        self._time.set(end, self._end, replica, 0)
        return end

    def begin_background(self, replica: int) -> None:
        self._time.set(self._send(replica), self._end_background, replica, 0)

    def _send(self, replica: int) -> float:
        """The time at which the answer arrives."""
        self._members.in_flight.add(replica)
        if self._learning is not None:
            self._learning.send(replica)
        network, now = self._network, self._time.now
        through = both_ways(network.dense_bytes) / (network.sync_servers * network.sync_bandwidth)
        self._servers_free_at = max(self._servers_free_at, now) + through
        return 2 * network.latency + max(now + 2 * network.dense, self._servers_free_at)

    def _end(self, replica: int, _: int) -> None:
        self._members.in_flight.discard(replica)
        if replica in self._members:
            self._members.count_exchange(replica, both_ways(self._network.dense_bytes))
            if self._learning is not None:
                self._learning.receive((replica,))

    def _end_background(self, replica: int, _: int) -> None:
        self._end(replica, 0)
        if replica in self._members:
            trigger, network = self._choices.trigger, self._network
            assert isinstance(trigger, Background)
            takes = network.dense + network.latency + network.dense_bytes / network.sync_bandwidth
            self._time.set(self._time.now + pause_after(trigger, takes), self._begin_again, replica, 0)

    def _begin_again(self, replica: int, _: int) -> None:
        if replica in self._members:
            self.begin_background(replica)


class MeanExchanges:
    """Background exchanges of all trainers with each other, one round after the other."""

    def __init__(
        self,
        choices: Choices,
        network: Network,
        time: VirtualTime,
        members: ReplicaMembers,
        learning: ReplicaLearning | None,
    ) -> None:
        self._choices, self._network, self._time = choices, network, time
        self._members, self._learning = members, learning
        self._round: tuple[int, ...] | None = None  # the replicas in the current round

    def begin_background(self, replica: int) -> None:
        """This replica is new; it is in the next round."""
        if self._round is None:
            self._begin()

    def _begin(self) -> None:
        self._round = tuple(sorted(self._members.workers))
        for replica in self._round:
            self._members.in_flight.add(replica)
            if self._learning is not None:
                self._learning.send(replica)
        end = self._time.now + self._network.reduce(len(self._round))
        self._time.set(end, self._end, 0, 0)

    def _end(self, _: int, __: int) -> None:
        assert self._round is not None
        size, there = len(self._round), tuple(r for r in self._round if r in self._members)
        self._round = None
        self._members.in_flight.clear()
        for replica in there:
            self._members.count_exchange(replica, by_all_reduce(self._network.dense_bytes, size))
        if there and self._learning is not None:
            self._learning.receive(there)
        if self._goes_on:
            trigger = self._choices.trigger
            assert isinstance(trigger, Background)
            takes = self._network.reduce(max(1, len(self._members)))
            self._time.set(self._time.now + pause_after(trigger, takes), self._begin_again, 0, 0)

    def _begin_again(self, _: int, __: int) -> None:
        if self._goes_on and self._round is None:
            self._begin()

    @property
    def _goes_on(self) -> bool:
        return bool(self._members) and not self._members.over


class Exchanges:
    """The exchanges of one replica strategy, from a switch to it to the next switch."""

    def __init__(
        self,
        choices: Choices,
        network: Network,
        time: VirtualTime,
        counts: dict[int, Counts],
        learning: ReplicaLearning | None,
    ) -> None:
        self._choices, self._network, self._time, self._learning = choices, network, time, learning
        self._members = ReplicaMembers(choices, counts)
        self._centre = CentreExchanges(choices, network, time, self._members, learning)
        self._mean = MeanExchanges(choices, network, time, self._members, learning)
        self._background = isinstance(choices.trigger, Background)
        self._exchanged_at: dict[int, float] = {}

    def end(self) -> None:
        """Another strategy takes over; exchanges in progress are cancelled."""
        self._members.over = True

    # ---- workers ----

    def join(self, worker: int) -> None:
        first, replica = self._members.join(worker), self._choices.replica_of(worker)
        self._exchanged_at.setdefault(replica, self._time.now)
        if self._learning is not None:
            self._learning.join(worker)
        if first and self._background:
            exchanges = self._centre if self._choices.exchange == "centre" else self._mean
            exchanges.begin_background(replica)

    def leave(self, worker: int) -> None:
        self._members.leave(worker)
        if self._learning is not None:
            self._learning.leave(worker)

    def idle(self, worker: int) -> None:
        """There is no work left for this worker."""
        self._members.idle(worker)
        if self._learning is not None:
            self._learning.idle(worker)

    def begins(self, worker: int) -> None:
        self._members.begins(worker)

    def stepped(self, worker: int) -> float:
        """A batch of this worker has been processed. Returns when it may ask for the next."""
        replica, now = self._choices.replica_of(worker), self._time.now
        if replica not in self._members.steps:
            return now  # its worker was lost before the step
        self._members.step(replica)
        if self._choices.exchange != "centre" or self._background or not self._is_due(replica):
            return now
        self._exchanged_at[replica] = now
        return self._centre.begin(replica)

    def _is_due(self, replica: int) -> bool:
        trigger = self._choices.trigger
        if isinstance(trigger, EverySteps):
            return self._members.steps[replica] % (trigger.steps * self._choices.workers_per_replica) == 0
        assert isinstance(trigger, EverySeconds)
        return self._time.now - self._exchanged_at[replica] >= trigger.seconds

    # ---- merges of all replicas, in the training loop ----

    def meeting(self) -> float:
        """The seconds that a merge of all replicas takes."""
        return self._network.reduce(max(1, len(self._members)), BUFFERS[self._choices.snapshot])

    def met(self) -> None:
        moved = BUFFERS[self._choices.snapshot] * by_all_reduce(
            self._network.dense_bytes, max(1, len(self._members))
        )
        for replica in self._members.workers:
            self._members.count_exchange(replica, moved)
        if self._learning is not None:
            self._learning.meet()
