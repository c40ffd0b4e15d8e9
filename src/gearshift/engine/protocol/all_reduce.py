"""Which workers form a ring, and when its sum counts: the coordinator's part of all-reduce in sync.

Workers in a ring sum their dense gradients among themselves. One of them, rank 0, gives the sum to the shards with its
rows; the others give their rows alone. So the gradients of a round stand or fall together: what members report is
held until all have reported, and if one of them is lost, or has no sum, all of it is given out again. A ring serves
round after round; when its members change, it breaks, or a round has none, its number is never used again. A round
has a ring if all workers that are here ask for work and the round has as many leases; else, and after a break, it goes
through the servers. `auto` tries both on the first rounds, in turns, and keeps the faster one. Knows no socket and no
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import Begin
from gearshift.sync.work import Supply

if TYPE_CHECKING:
    from gearshift.engine.protocol.messages import Report

Transport = Literal["auto", "servers", "all_reduce"]

FAILURES = 3  # of rings one after the other, after which the run does without
UNFIT = 20  # rounds of sync one after the other that could have no ring, after which it is told
TURN = 12  # rounds that `auto` tries one transport for, before the other has its turn; a third does not count
TURNS = 4  # two for each
GAIN = 0.97  # of the servers' time, that all-reduce must stay below


@dataclass(frozen=True, slots=True)
class GroupRank:
    """A worker's place in a ring; ring 0: in none."""

    ring: int = 0
    rank: int = 0
    size: int = 0

    @property
    def carries(self) -> bool:
        """Whether it gives the sum to the shards."""
        return self.rank == 0


NO_GROUP = GroupRank()


class AllReduceGroups:
    def __init__(
        self,
        transport: Transport = "servers",
        tell: Callable[[str], None] = lambda sentence: None,
        turn: int = TURN,
    ) -> None:
        self.tell, self._turn = tell, turn
        self.rounds, self.broken = 0, 0  # that had a whole sum; rings that had none
        self._on, self._tries = transport != "servers", transport == "auto"
        self._trials: dict[int, TransportTrial] = {}  # by size
        self._number, self._failures, self._unfit = 0, 0, 0
        self._token, self._began = -1, 0.0  # of the round that was begun last
        self._trial: TransportTrial | None = None  # that it counts for, unless it is disturbed
        self._open = False  # it has a ring, and some of its reports are to come
        self.forget()

    def forget(self) -> None:
        """A new incarnation begins; nobody is here."""
        self._token, self._open, self._trial = -1, False, None
        self._members: dict[int, int] = {}  # boot by worker
        self._ranks: dict[int, int] = {}  # by worker
        self._leases: dict[int, int] = {}  # of this round, by worker
        self._held: dict[int, Report] = {}  # by worker

    # ---- what a worker begins ----

    def place(
        self,
        begin: Begin,
        asking: Callable[[], Mapping[int, int] | None],
        coordinator: Coordinator,
        now: float,
    ) -> GroupRank:
        """For this work. `asking`: the boot of every worker if all have asked for work, else None."""
        if self._on and begin.token != self._token:
            self._begin_round(begin.token, asking() or {}, coordinator, now)
        if not self._open or begin.worker in self._leases:
            return NO_GROUP
        self._leases[begin.worker] = begin.lease.number
        return GroupRank(self._number, self._ranks[begin.worker], len(self._members))

    def _begin_round(
        self, token: int, asking: Mapping[int, int], coordinator: Coordinator, now: float
    ) -> None:
        if self._trial is not None and token == self._token + 1:
            self._trial.took(now - self._began, self.tell)
        self._token, self._began = token, now
        size = len(asking) if fits(len(asking), coordinator) else 0
        if not self._tries and coordinator.strategy.name == "sync":
            self._unfit = 0 if size else self._unfit + 1
            if self._unfit == UNFIT:
                self.tell(
                    "all-reduce needs rounds in which each worker has one lease (global_batch = workers x batch); "
                    "these have not, and go through the servers"
                )
        self._trial = (
            self._trials.setdefault(size, TransportTrial(size, self._turn)) if size and self._tries else None
        )
        self._open = bool(size) and (self._trial is None or self._trial.ring)
        self._leases, self._held = {}, {}
        if not self._open:
            self._members = {}  # connections are given up in a round without
        elif asking != self._members:
            self._number, self._members = self._number + 1, dict(asking)
            self._ranks = {worker: rank for rank, worker in enumerate(sorted(asking))}

    # ---- what became of it ----

    def expects(self, report: Report) -> bool:
        """Whether this is of the round that the ring is in."""
        here = self._open and report.ring == self._number and report.worker in self._leases
        return here and report.lease in (None, self._leases[report.worker])

    def hold(self, report: Report) -> list[Report]:
        """The reports of all members, once the last has come, in the order of their leases."""
        self._held[report.worker] = report
        if len(self._held) < len(self._members):
            return []
        self._open, self._failures = False, 0
        self.rounds += 1
        return sorted(self._held.values(), key=lambda held: held.lease or 0)

    def has(self, worker: int) -> bool:
        """Whether a ring that is in a round needs this worker."""
        return self._open and worker in self._members

    def undo(self) -> list[Report]:
        """The round goes on without its ring; what was reported does not count."""
        held = list(self._held.values()) if self._open else []
        if self._open:
            self.broken += 1
            self._open, self._trial = False, None
            self._members, self._held = {}, {}
        return held

    def failed(self, reason: str) -> list[Report]:
        """A member has no sum. The same as `undo`; in the end the run does without."""
        self._failures += 1
        if self._failures >= FAILURES:
            self._on = False
            self.tell(
                f"all-reduce among the workers failed {FAILURES} times, the last time so: {reason}; "
                "sync goes on through the servers"
            )
        return self.undo()


def fits(workers: int, coordinator: Coordinator) -> bool:
    """Whether the round that begins is made of one lease for each of so many workers, and of nothing else."""
    strategy, work = coordinator.strategy, coordinator.work
    if strategy.name != "sync" or workers < 2 or work.waiting or work.flying_adopted:
        return False
    if any(flight.token != work.step for flight in work.flying.values()):
        return False
    total, leases = work.flying_examples, len(work.flying)
    upcoming = leases_of(work.supply)
    while total < strategy.global_batch and leases <= workers and (count := next(upcoming, 0)):
        total, leases = total + count, leases + 1
    return total >= strategy.global_batch and leases == workers


def leases_of(supply: Supply) -> Iterator[int]:
    """How many examples the next leases will have."""
    yield from (lease.count for lease in supply.returned)
    for _, count, batch in supply.ranges:
        for at in range(0, count, batch):
            yield min(batch, count - at)


class TransportTrial:
    """Which transport takes less time for a round of this many workers: both have their turns, twice."""

    def __init__(self, size: int, turn: int) -> None:
        self._size, self._turn, self._rounds = size, turn, 0
        self._seconds: dict[bool, list[float]] = {True: [], False: []}  # by whether a ring was used
        self.ring = False  # is to be used now

    def took(self, seconds: float, tell: Callable[[str], None]) -> None:
        """A round, begun as `ring` said. When all turns are over, what is decided and why is told once."""
        if self._rounds == TURNS * self._turn:
            return
        if self._rounds % self._turn >= self._turn // 3:  # connections are made, states are copied
            self._seconds[self.ring].append(seconds)
        self._rounds += 1
        self.ring = self._rounds // self._turn % 2 == 1
        if self._rounds == TURNS * self._turn:
            by_ring, by_servers = median(self._seconds[True]), median(self._seconds[False])
            self.ring = by_ring < GAIN * by_servers
            tell(
                f"sync with {self._size} workers uses {'all-reduce' if self.ring else 'the servers'}: a round took "
                f"{1e3 * by_ring:.1f} ms with all-reduce, {1e3 * by_servers:.1f} ms through the servers"
            )
