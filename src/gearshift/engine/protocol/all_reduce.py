"""Which workers form an all-reduce group, and when its sum counts: the coordinator's part of all-reduce in sync.

Workers in a group sum their dense gradients among themselves. One of them, rank 0, pushes the sum to the shards with
its rows; the others push only their rows. So the gradients of a round count together or not at all: reports are held
until every member has reported, and if a member is lost or has no sum, all leases of the round are reissued. A group
serves many rounds. Its number is not used again after its members change, it breaks, or a round is made without it. A
round has a group if all present workers ask for work and the round has exactly one lease for each; otherwise, and after
a break, it goes through the servers. `auto` alternates between the two transports in the first rounds and keeps the
faster one. Does not touch sockets or tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import Begin

if TYPE_CHECKING:
    from gearshift.engine.protocol.messages import LeaseDone

Transport = Literal["auto", "servers", "all_reduce"]

FAILURES = 3  # consecutive failures of groups after which the run stops using them
UNFIT = 20  # consecutive sync rounds without a possible group after which the user is notified
TURN = 12  # rounds per trial of a transport under `auto`; the first third is warm-up
TURNS = 4  # two for each transport
GAIN = 0.97  # all-reduce is used if its time is below this share of the servers' time


@dataclass(frozen=True, slots=True)
class GroupRank:
    """A worker's place in a group. Group 0 means none."""

    group: int = 0
    rank: int = 0
    size: int = 0
    relayed: bool = False  # relays sum the gradients of each machine, instead of all-reduce

    @property
    def ring(self) -> int:
        """The group, if its members sum dense gradients by all-reduce."""
        return 0 if self.relayed else self.group

    @property
    def carries(self) -> bool:
        """Whether this worker pushes the sum to the shards."""
        return self.rank == 0


NO_GROUP = GroupRank()


@dataclass(frozen=True, slots=True)
class HeldReport:
    """A member's report, held until all members have reported."""

    worker: int
    boot: int
    done: LeaseDone


class AllReduceGroups:
    def __init__(
        self,
        transport: Transport = "servers",
        notify: Callable[[str], None] = lambda sentence: None,
        turn: int = TURN,
    ) -> None:
        self.notify, self._turn = notify, turn
        self.rounds, self.broken = 0, 0  # rounds with a complete sum; groups that failed
        self.relayed_rounds = 0  # of these, those summed by relays
        self.relays = False  # whether machines have relays that can sum gradients
        self._relayed = False  # this round is theirs
        self._on, self._tries = transport != "servers", transport == "auto"
        self._trials: dict[int, TransportTrial] = {}  # by size
        self._number, self._failures, self._unfit = 0, 0, 0
        self._token, self._began = -1, 0.0  # token and start time of the newest round
        self._trial: TransportTrial | None = (
            None  # the trial that this round is measured for, unless the round is disturbed
        )
        self._open = False  # the round has a group and some of its reports are missing
        self.forget()

    def forget(self) -> None:
        """A new incarnation begins; no worker has joined yet."""
        self._token, self._open, self._trial = -1, False, None
        self._members: dict[int, int] = {}  # boot by worker
        self._ranks: dict[int, int] = {}  # by worker
        self._leases: dict[int, int] = {}  # of this round, by worker
        self._held: dict[int, HeldReport] = {}  # by worker

    # ---- the start of a round ----

    def place(
        self,
        begin: Begin,
        asking: Callable[[], Mapping[int, int] | None],
        coordinator: Coordinator,
        now: float,
    ) -> GroupRank:
        """The worker's place for this lease. `asking` returns the boots of all workers, or None if one is busy."""
        if (self._on or self.relays) and begin.token != self._token:
            self._begin_round(begin.token, asking() or {}, coordinator, now)
        if not self._open or begin.worker in self._leases:
            return NO_GROUP
        self._leases[begin.worker] = begin.lease.number
        return GroupRank(self._number, self._ranks[begin.worker], len(self._members), self._relayed)

    def _begin_round(
        self, token: int, asking: Mapping[int, int], coordinator: Coordinator, now: float
    ) -> None:
        if self._trial is not None and token == self._token + 1:
            self._trial.took(now - self._began, self.notify)
        self._token, self._began = token, now
        size = len(asking) if fits(len(asking), coordinator) else 0
        if self._on and not self._tries and coordinator.strategy.name == "sync":
            self._unfit = 0 if size else self._unfit + 1
            if self._unfit == UNFIT:
                self.notify(
                    "all-reduce needs rounds in which each worker has one lease (global_batch = workers x batch); "
                    "the rounds of this run do not, so they go through the servers"
                )
        self._trial = (
            self._trials.setdefault(size, TransportTrial(size, self._turn))
            if size and self._on and self._tries
            else None
        )
        ring = self._on and (self._trial is None or self._trial.all_reduce)
        self._relayed = self.relays and not ring
        self._open = bool(size) and (ring or self._relayed)
        self._leases, self._held = {}, {}
        if not self._open:
            self._members = {}  # workers close the group's connections in a round without one
        elif asking != self._members:
            self._number, self._members = self._number + 1, dict(asking)
            self._ranks = {worker: rank for rank, worker in enumerate(sorted(asking))}

    # ---- the end of a round ----

    def expects(self, worker: int, group: int, lease: int | None = None) -> bool:
        """Whether a report of this worker belongs to the current round of the group."""
        here = self._open and group == self._number and worker in self._leases
        return here and lease in (None, self._leases[worker])

    def hold(self, report: HeldReport) -> list[HeldReport]:
        """Holds a report. Once the last has come, returns those of all members in the order of their leases."""
        self._held[report.worker] = report
        if len(self._held) < len(self._members):
            return []
        self._open, self._failures = False, 0
        self.rounds += 1
        self.relayed_rounds += self._relayed
        return sorted(self._held.values(), key=lambda held: held.done.lease)

    def has(self, worker: int) -> bool:
        """Whether this worker is a member of a group with a round in progress."""
        return self._open and worker in self._members

    def undo(self) -> list[HeldReport]:
        """Ends the group; the round continues through the servers. Returns the held reports, which are not counted."""
        held = list(self._held.values()) if self._open else []
        if self._open:
            self.broken += 1
            self._open, self._trial = False, None
            self._members, self._held = {}, {}
        return held

    def failed(self, reason: str) -> list[HeldReport]:
        """A member has no sum. The same as `undo`; after `FAILURES` of them the run stops using groups."""
        self._failures += not self._relayed
        if self._failures >= FAILURES:
            self._on = False
            self.notify(
                f"all-reduce among the workers failed {FAILURES} times, most recently: {reason}; "
                "sync continues through the servers"
            )
        return self.undo()


def fits(workers: int, coordinator: Coordinator) -> bool:
    """Whether the next round consists of exactly one lease for each of this many workers."""
    strategy, work = coordinator.strategy, coordinator.work
    if strategy.name != "sync" or workers < 2 or work.waiting or work.flying_adopted:
        return False
    if any(flight.token != work.step for flight in work.flying.values()):
        return False
    total, leases = work.flying_examples, len(work.flying)
    upcoming = (count for _, count in work.supply.upcoming())
    while total < strategy.global_batch and leases <= workers and (count := next(upcoming, 0)):
        total, leases = total + count, leases + 1
    return total >= strategy.global_batch and leases == workers


class TransportTrial:
    """Measures which transport is faster for rounds of this many workers. Each gets two trials."""

    def __init__(self, size: int, turn: int) -> None:
        self._size, self._turn, self._rounds = size, turn, 0
        self._seconds: dict[bool, list[float]] = {True: [], False: []}  # by whether all-reduce was used
        self.all_reduce = False  # whether to use it for the current round

    def took(self, seconds: float, notify: Callable[[str], None]) -> None:
        """Records the time of a round with the current transport. After the last trial `notify` gets the result."""
        if self._rounds == TURNS * self._turn:
            return
        if (
            self._rounds % self._turn >= self._turn // 3
        ):  # during warm-up, connections are opened and states are copied
            self._seconds[self.all_reduce].append(seconds)
        self._rounds += 1
        self.all_reduce = self._rounds // self._turn % 2 == 1
        if self._rounds == TURNS * self._turn:
            by_all_reduce, by_servers = median(self._seconds[True]), median(self._seconds[False])
            self.all_reduce = by_all_reduce < GAIN * by_servers
            faster = "all-reduce" if self.all_reduce else "the servers"
            notify(
                f"sync with {self._size} workers uses {faster}: a round took "
                f"{1e3 * by_all_reduce:.1f} ms with all-reduce, {1e3 * by_servers:.1f} ms through the servers"
            )
