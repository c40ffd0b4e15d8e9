"""What a worker says of others' work does not count."""

from __future__ import annotations

from gearshift.engine.protocol.coordinator import CoordinatorRole, CoordinatorSettings
from gearshift.engine.protocol.messages import (
    Assignment,
    Hello,
    LeaseDone,
    LeaseRefused,
    Loaded,
    Report,
    Tell,
    To,
)
from gearshift.parameters.shard import ApplyStep, Drop
from gearshift.sync.events import Action, Apply
from gearshift.training.engine import Log
from tests.protocol.world import Account, Disk


def begun(log: Log | None = None) -> tuple[CoordinatorRole, dict[int, int]]:
    """Two workers under async, and the lease of each."""
    disk = Disk("async", {"global_batch": 1, "batch": 1})
    settings = CoordinatorSettings(shards=1, examples=10, patience=5.0)
    role = CoordinatorRole(disk, Account(), settings, log=log)
    role.handle(Loaded(role.incarnation, 0, 1), 0.0)
    for worker in (0, 1):
        role.handle(Hello(worker, 1), 0.0)
        role.handle(Report(role.incarnation, worker, 1, 1), 0.0)
    leases = {to.number: m.begin.lease.number for to, m in role.out if isinstance(m, Assignment)}
    role.out.clear()
    return role, leases


def orders(role: CoordinatorRole) -> list[object]:
    return [
        message.order.what for to, message in role.out if isinstance(message, Tell) and to == To("shard", 0)
    ]


def test_a_lease_is_reported_by_the_worker_that_has_it() -> None:
    role, leases = begun()
    role.handle(Report(role.incarnation, 0, 1, 2, LeaseDone(leases[0])), 0.0)
    assert len(orders(role)) == 1


def test_another_worker_cannot_end_a_lease() -> None:
    role, leases = begun()
    role.handle(Report(role.incarnation, 0, 1, 2, LeaseDone(leases[1])), 0.0)
    role.handle(Report(role.incarnation, 0, 1, 3, LeaseRefused(leases[1], "I say so")), 0.0)
    assert Drop(leases[1]) not in orders(role)
    role.handle(Report(role.incarnation, 1, 1, 2, LeaseDone(leases[1])), 0.0)
    steps = [order for order in orders(role) if isinstance(order, ApplyStep)]
    assert [part for step in steps for part in step.parts] == [(leases[1], 1.0)]


def test_a_gradient_that_arrives_after_the_run_has_stopped_makes_no_step() -> None:
    """The last checkpoint would not have it, though the log would."""
    decided: list[Action] = []
    role, leases = begun(lambda event, actions: decided.extend(actions))
    assert role.running is not None
    role.running.passes.stop()
    role.handle(Report(role.incarnation, 0, 1, 2, LeaseDone(leases[0])), 0.0)
    assert not any(isinstance(action, Apply) for action in decided)
