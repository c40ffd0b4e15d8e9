"""The coordinator's part of all-reduce: gradients of a ring count together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gearshift.engine.protocol.all_reduce import (
    FAILURES,
    NO_GROUP,
    TURN,
    TURNS,
    UNFIT,
    AllReduceGroups,
    GroupRank,
    Transport,
)
from gearshift.engine.protocol.coordinator import CoordinatorRole, CoordinatorSettings
from gearshift.engine.protocol.coordinator_figures import coordinator_figures
from gearshift.engine.protocol.messages import (
    Assignment,
    Done,
    GroupBroken,
    Hello,
    LeaseDone,
    Loaded,
    Report,
    Tell,
)
from gearshift.parameters.shard import ApplyStep, Drop
from tests.protocol.world import Account, Disk


class Workers:
    """So many, which ask for work; what they are told."""

    def __init__(
        self, workers: int, examples: int = 100, transport: Transport = "all_reduce", **sync: int
    ) -> None:
        self.said: list[str] = []
        self.work: dict[int, Assignment] = {}
        self.orders: list[Any] = []
        self.now = 0.0
        sizes = {"global_batch": workers, "batch": 1} | sync
        self.role = CoordinatorRole(
            Disk("sync", sizes),
            Account(),
            CoordinatorSettings(shards=1, examples=examples, patience=5.0),
            all_reduce_groups=AllReduceGroups(transport, self.said.append),
        )
        self.role.handle(Loaded(self.role.incarnation, 0, 1), 0.0)
        for worker in range(workers):
            self.role.handle(Hello(worker, 1), 0.0)
        for worker in range(workers):
            self.say(Report(1, worker, 1, 1))

    def say(self, report: Report | Hello) -> None:
        self.role.handle(report, self.now)
        self.hear()

    def hear(self) -> None:
        out, self.role.out = self.role.out, []
        for to, message in out:
            if isinstance(message, Assignment):
                self.work[to.number] = message
            elif isinstance(message, Tell):
                self.orders.append(message.order.what)
                self.role.handle(Done(1, 0, 1, message.order.number), self.now)
                self.hear()

    def report(self, worker: int, *, boot: int = 1, sum_: bool = True) -> None:
        work = self.work[worker]
        head = 1, worker, boot, work.request + 1
        group = work.place.group
        if sum_:
            self.say(Report(*head, LeaseDone(work.begin.lease.number, group=group)))
        else:
            self.say(Report(*head, GroupBroken(group, "connection closed")))

    def places(self) -> list[GroupRank]:
        return [self.work[worker].place for worker in sorted(self.work)]

    def steps(self) -> list[ApplyStep]:
        return [order for order in self.orders if isinstance(order, ApplyStep)]

    def a_round(self) -> None:
        for worker in sorted(self.work):
            self.report(worker)

    def until_ringed(self) -> None:
        """The first round is begun before all have asked."""
        self.a_round()
        assert all(place.group for place in self.places())


def test_a_ring_serves_round_after_round() -> None:
    workers = Workers(3)
    workers.until_ringed()
    for _ in range(3):
        assert workers.places() == [GroupRank(1, rank, 3) for rank in range(3)]
        before = len(workers.steps())
        workers.report(2)
        workers.report(0)
        assert len(workers.steps()) == before  # held
        workers.report(0)  # again: changes nothing
        workers.report(1)
        assert len(workers.steps()) == before + 1
        assert len(workers.steps()[-1].parts) == 3
    assert coordinator_figures(workers.role)["ring_rounds"] == 3


def lost(workers: Workers) -> None:
    for worker in (0, 1):
        workers.role.sessions[worker].heard = 6.0
    workers.now = 6.0
    workers.role.tick(6.0)
    workers.hear()


@pytest.mark.parametrize(
    "harm",
    [
        lambda workers: workers.report(2, sum_=False),
        lambda workers: workers.say(Hello(2, 2)),
        lambda workers: workers.role.running.switch("gba", {"global_batch": 3, "batch": 1}, ""),
        lost,
    ],
    ids=["no sum", "started anew", "switched", "silent"],
)
def test_what_a_broken_ring_has_reported_is_done_again(harm: Callable[[Workers], None]) -> None:
    workers = Workers(3)
    workers.until_ringed()
    leases = [workers.work[worker].begin.lease for worker in range(3)]
    workers.report(0)
    steps = len(workers.steps())
    harm(workers)
    workers.hear()
    again = workers.work[0]
    assert len(workers.steps()) == steps and Drop(leases[0].number) in workers.orders
    assert again.place == NO_GROUP and again.begin.lease.attempt > 0
    assert again.begin.lease.number not in [lease.number for lease in leases]
    workers.report(1)  # its sum comes too late, and does not count
    assert Drop(leases[1].number) in workers.orders
    applied = {lease for step in workers.steps() for lease, _ in step.parts}
    assert not applied & {lease.number for lease in leases}


def test_who_leaves_ends_its_round_first() -> None:
    workers = Workers(3)
    workers.until_ringed()
    workers.report(0)
    workers.role.resize(2)  # worker 2 is at work
    workers.report(1)
    workers.report(2)
    assert workers.role.all_reduce_groups.rounds == 1 and workers.role.all_reduce_groups.broken == 0
    assert workers.work[0].place == workers.work[1].place == NO_GROUP


def test_who_is_given_notice_ends_its_batch_and_is_not_begun_again() -> None:
    workers = Workers(3, transport="servers")
    lease = workers.work[2].begin.lease
    workers.role.dismiss(2)  # it is at work
    workers.role.dismiss(7)  # nobody
    for worker in range(3):
        workers.report(worker)
    assert lease.number in {number for step in workers.steps() for number, _ in step.parts}
    assert workers.work[2].begin.lease == lease and set(workers.role.sessions.members) == {0, 1}
    workers.say(Hello(2, 1))  # the same start: it was told
    assert set(workers.role.sessions.members) == {0, 1}
    workers.say(Hello(2, 2))  # another, elsewhere
    assert set(workers.role.sessions.members) == {0, 1, 2}


def test_who_has_reported_and_leaves_breaks_the_ring() -> None:
    workers = Workers(3)
    workers.until_ringed()
    workers.report(2)
    workers.report(0)
    workers.role.resize(2)
    workers.hear()
    assert workers.role.all_reduce_groups.broken == 1 and workers.work[0].place == NO_GROUP


def test_all_that_have_reported_and_are_too_many_leave_together() -> None:
    workers = Workers(4)
    workers.until_ringed()
    workers.report(3)
    workers.report(2)
    workers.role.resize(2)  # whoever leaves first breaks the ring, and with it the other leaves
    assert set(workers.role.sessions.members) == {0, 1} and workers.role.all_reduce_groups.broken == 1


def test_a_lease_of_a_ring_that_goes_to_a_newcomer_has_no_ring() -> None:
    """The newcomer has no rank in it (schedule 444)."""
    workers = Workers(3)
    workers.until_ringed()
    workers.say(Hello(3, 1))
    workers.say(Report(1, 3, 1, 1))
    assert 3 not in workers.work  # it waits for the next round
    lease = workers.work[2].begin.lease
    workers.role.sessions[3].heard = 6.0
    lost(workers)
    assert workers.work[3].place == NO_GROUP and workers.work[3].begin.lease.first == lease.first


def test_a_meeting_does_not_wait_for_the_sum_of_a_ring() -> None:
    """Who has met stands still, and a member that has not given its part yet will not (schedule 188)."""
    workers = Workers(2)
    workers.until_ringed()
    lease = workers.work[0].begin.lease
    workers.report(0)
    workers.role.running.meetings.request_show()
    workers.role.proceed()
    workers.hear()
    assert Drop(lease.number) in workers.orders and workers.work[0].place == NO_GROUP
    workers.report(1)
    assert workers.places() == [NO_GROUP, NO_GROUP], "no ring is made while workers are called together"


def test_the_next_round_has_a_new_ring() -> None:
    workers = Workers(2)
    workers.until_ringed()
    workers.report(0)
    workers.report(1, sum_=False)
    assert workers.places() == [NO_GROUP, NO_GROUP]
    workers.a_round()
    assert workers.places() == [GroupRank(2, 0, 2), GroupRank(2, 1, 2)]


def test_a_ring_that_breaks_again_and_again_is_given_up() -> None:
    workers = Workers(2)
    workers.a_round()
    for _ in range(FAILURES):
        assert all(place.group for place in workers.places())
        workers.report(0, sum_=False)
        workers.report(1, sum_=False)
        workers.a_round()
    for _ in range(3):
        assert workers.places() == [NO_GROUP, NO_GROUP]
        workers.a_round()
    assert len(workers.said) == 1
    assert "failed 3 times" in workers.said[0] and "connection closed" in workers.said[0]


def test_a_round_that_is_not_a_lease_for_each_has_no_ring() -> None:
    for workers in (
        Workers(2, global_batch=4),
        Workers(3, global_batch=2),
        Workers(1),
        Workers(2, transport="servers"),
    ):
        for _ in range(3):
            assert all(place == NO_GROUP for place in workers.places())
            workers.a_round()


def test_who_asked_for_rings_hears_that_rounds_have_none() -> None:
    workers = Workers(2, global_batch=4)
    for _ in range(3 * UNFIT):
        workers.a_round()
    assert len(workers.said) == 1 and "each worker has one lease" in workers.said[0]


def test_the_last_round_of_a_pass_may_be_too_small_for_a_ring() -> None:
    workers = Workers(2, examples=5)
    workers.until_ringed()
    workers.a_round()
    last = next(work for work in workers.work.values() if work.begin.lease.first == 4)
    assert last.place == NO_GROUP


@pytest.mark.parametrize("faster", [True, False])
def test_auto_keeps_the_faster_one(faster: bool) -> None:
    workers = Workers(2, examples=10_000, transport="auto")
    used = []
    for _ in range(TURNS * TURN + 10):
        used.append(bool(workers.places()[0].group))
        workers.now += 0.001 if used[-1] == faster else 0.002
        workers.a_round()
    assert 0.4 < sum(used[: TURNS * TURN]) / (TURNS * TURN) < 0.6
    assert set(used[-5:]) == {faster}
    name = "all-reduce" if faster else "the servers"
    assert len(workers.said) == 1 and workers.said[0].startswith(f"sync with 2 workers uses {name}: ")
