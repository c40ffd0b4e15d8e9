"""The protocol under faults: no schedule breaks a law, and the laws find servers and workers that are wrong."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator

import pytest
import torch

from gearshift.engine.roles import coordinator as coordinator_role
from gearshift.engine.roles import shard as shard_role
from gearshift.engine.roles.coordinator import CoordinatorRole
from gearshift.engine.roles.messages import Pull, Report, Taken
from gearshift.engine.roles.shard import ShardRole
from gearshift.engine.roles.worker import WorkerRole
from gearshift.shard import Order, Shard
from tests.protocol.simulator import Simulation, violation

SCHEDULES = int(os.environ.get("GEARSHIFT_SCHEDULES", "300"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_no_schedule_breaks_a_law() -> None:
    assert [found for seed in range(SCHEDULES) if (found := violation(seed))[1]] == []


def test_a_schedule_follows_from_its_seed() -> None:
    assert Simulation(7).run().counts == Simulation(7).run().counts != Simulation(8).run().counts


def test_schedules_have_every_kind_of_trouble() -> None:
    seen = sum((Simulation(seed).run().counts for seed in range(40)), start=Simulation(0).counts)
    for what in ("lost", "doubled", "switched", "Saved", "Rejoin"):
        assert seen[what], what
    for role in ("worker", "shard", "coordinator"):
        assert seen[f"{role} killed"] and seen[f"{role} frozen"], role


# Each of these is a mistake that somebody could make; the schedules must find it.


def orders_are_done_again_when_told_again(patch: pytest.MonkeyPatch) -> None:
    tell = Shard.tell

    def told(self: Shard, order: Order) -> None:
        if order.number <= self.done and order.number == self.done:
            self.done -= 1
        tell(self, order)

    patch.setattr(Shard, "tell", told)


def an_ended_lease_takes_a_gradient(patch: pytest.MonkeyPatch) -> None:
    def take(self: Shard, lease: int, push: object) -> bool:
        self.waiting.setdefault(lease, push)  # type: ignore[arg-type]
        return True

    patch.setattr(Shard, "take", take)
    patch.setattr(Shard, "_forget_below", lambda self, open_from: None)


def a_pull_does_not_wait_for_its_version(patch: pytest.MonkeyPatch) -> None:
    handle = ShardRole.handle

    def handled(self: ShardRole, message: object) -> None:
        if isinstance(message, Pull):
            message = Pull(message.incarnation, message.worker, message.boot, message.pull, 0, message.ids)
        handle(self, message)  # type: ignore[arg-type]

    patch.setattr(ShardRole, "handle", handled)


def one_shard_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A worker reports when the first shard has its part."""
    handle = WorkerRole.handle

    def handled(self: WorkerRole, message: object) -> None:
        if isinstance(message, Taken) and self._gives(message.lease):
            self._gifts = {message.shard: self._gifts.get(message.shard)}  # type: ignore[dict-item]
        handle(self, message)  # type: ignore[arg-type]

    patch.setattr(WorkerRole, "handle", handled)


def an_old_incarnation_is_served(patch: pytest.MonkeyPatch) -> None:
    handle = ShardRole.handle

    def handled(self: ShardRole, message: object) -> None:
        if not isinstance(message, shard_role.Load):
            object.__setattr__(message, "incarnation", self.incarnation)
        handle(self, message)  # type: ignore[arg-type]

    patch.setattr(ShardRole, "handle", handled)


def a_request_is_taken_twice(patch: pytest.MonkeyPatch) -> None:
    reported = CoordinatorRole._reported

    def taken(self: CoordinatorRole, session: coordinator_role.Session, report: Report) -> None:
        session.request = 0
        reported(self, session, report)

    patch.setattr(CoordinatorRole, "_reported", taken)


def an_order_is_said_once(patch: pytest.MonkeyPatch) -> None:
    tick = CoordinatorRole.tick

    def ticked(self: CoordinatorRole, now: float) -> None:
        orders, self._orders = self._orders, deque()
        tick(self, now)
        self._orders = orders + self._orders

    patch.setattr(CoordinatorRole, "tick", ticked)


def a_snapshot_counts_before_all_parts_are_written(patch: pytest.MonkeyPatch) -> None:
    saved = CoordinatorRole._part_saved

    def part_saved(self: CoordinatorRole, shard: int, name: str) -> None:
        for number in range(self.shards):
            saved(self, number, name)

    patch.setattr(CoordinatorRole, "_part_saved", part_saved)


@pytest.mark.parametrize(
    "mistake",
    [
        orders_are_done_again_when_told_again,
        an_ended_lease_takes_a_gradient,
        a_pull_does_not_wait_for_its_version,
        one_shard_is_enough,
        an_old_incarnation_is_served,
        a_request_is_taken_twice,
        an_order_is_said_once,
        a_snapshot_counts_before_all_parts_are_written,
    ],
    ids=lambda mistake: mistake.__name__,
)
def test_the_schedules_find_a_mistake(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert any(violation(seed)[1] for seed in range(600))
