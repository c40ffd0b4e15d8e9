"""The protocol under faults: no schedule breaks a law, and the laws find servers and workers that are wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from gearshift.engine.protocol import shard as shard_role
from gearshift.engine.protocol.all_reduce import AllReduceGroups, HeldReport
from gearshift.engine.protocol.coordinator import CoordinatorRole, CoordinatorSettings
from gearshift.engine.protocol.messages import (
    Give,
    Hello,
    Load,
    Message,
    Pull,
    Rejoin,
    Report,
    Taken,
    To,
    Welcome,
)
from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.replica_messages import Offer, OfferedValues
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.protocol.snapshot_cuts import SnapshotCuts
from gearshift.engine.protocol.sync_server import SyncServer
from gearshift.engine.protocol.worker import WorkerRole
from gearshift.engine.protocol.worker_leases import WorkerLeases
from gearshift.parameters.server import Server
from gearshift.parameters.shard import Order, Shard
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import Action
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Strategy
from gearshift.sync.work import Work
from tests.protocol import simulator
from tests.protocol.simulator import Simulation, violation
from tests.protocol.world import Account, Disk, restored

SCHEDULES = int(os.environ.get("GEARSHIFT_SCHEDULES", "200"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_no_schedule_breaks_a_law() -> None:
    assert [found for seed in range(SCHEDULES) if (found := violation(seed))[1]] == []


@pytest.mark.slow
def test_no_schedule_of_many_breaks_a_law() -> None:
    assert [found for seed in range(10**6, 10**6 + 20_000) if (found := violation(seed))[1]] == []


def test_a_schedule_follows_from_its_seed() -> None:
    assert Simulation(7).run().counts == Simulation(7).run().counts != Simulation(8).run().counts


def test_schedules_have_every_kind_of_trouble() -> None:
    seen = sum((Simulation(seed).run().counts for seed in range(100)), start=Simulation(0).counts)
    kinds = "lost", "doubled", "switched", "resized", "dismissed", "left", "Saved", "Rejoin"
    for what in (
        *kinds,
        "Offer",
        "Met",
        "shown and compared",
        "sum",
        "no sum",
        "stepped beside",
        "read ahead",
    ):
        assert seen[what], what
    for role in ("worker", "shard", "coordinator"):
        assert seen[f"{role} killed"] and seen[f"{role} frozen"], role


class Lossy(Simulation):
    """A reliable network, except for the messages that `loses` names, the first time."""

    loses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lossy = self.doubling = self.slow = self.faults_until = 0.0
        self.cut_every, self.gone = 1, set()

    def _send(self, to: To, message: Message) -> None:
        kind = type(message).__name__
        if kind in self.loses and (to, kind) not in self.gone:
            self.gone.add((to, kind))
        else:
            super()._send(to, message)


def test_snapshots_go_on_after_a_lost_answer() -> None:
    for seed in range(30):
        simulation = Lossy(seed)
        simulation.loses = ("Saved",)
        simulation.examples = 12 * simulation.global_batch
        simulation.run()
        assert simulation.gone and len(simulation.disk.snapshots) > 1, seed


class Steady(Lossy):
    """Under one strategy to the end; each kind of message about replicas is lost once on its way to each."""

    loses = ("Offer", "Target", "Meet", "Met", "Go")
    strategy: tuple[str, dict[str, object]]

    def _strategy(self) -> tuple[str, dict[str, object]]:
        name, settings = self.strategy
        return name, {"global_batch": self.global_batch, "batch": self.batch, **settings}

    def _switch(self) -> None:
        pass

    _resize = _dismiss = _switch


@pytest.mark.parametrize(
    "strategy",
    [
        ("easgd", {"pause": 1.0}),
        ("easgd", {"exchange": 1}),
        ("bmuf", {"pause": 1.0}),
        ("k_step_adam", {"exchange": 1, "mode": "params"}),
    ],
    ids=lambda strategy: f"{strategy[0]}-{next(iter(strategy[1]))}",
)
def test_nobody_waits_for_a_message_that_was_lost(
    monkeypatch: pytest.MonkeyPatch, strategy: tuple[str, dict[str, object]]
) -> None:
    monkeypatch.setattr(Steady, "strategy", strategy, raising=False)
    seen = sum((Steady(seed).run().counts for seed in range(20)), start=Steady(0).counts)
    assert seen["shown and compared"] > 100 and seen["Go"] and seen["Rejoin"] == 0


Done = Callable[[Server], None]


def roles() -> tuple[Disk, CoordinatorRole, ShardRole]:
    """A coordinator and its one shard, at work."""
    disk = Disk("sync", {"global_batch": 2, "batch": 2})
    coordinator = CoordinatorRole(disk, Account(), CoordinatorSettings(shards=1, examples=100, patience=5.0))
    shard = ShardRole(0, 1, lambda name, done: done(restored(None, 0, 1)), lambda name, server: None)
    exchange(coordinator, shard)
    assert coordinator.epoch is not None
    return disk, coordinator, shard


def exchange(coordinator: CoordinatorRole, *shards: ShardRole) -> list[tuple[To, Message]]:
    """Until coordinator and shards have no more to say to each other; what is for workers."""
    for_workers: list[tuple[To, Message]] = []
    while coordinator.out or any(shard.out for shard in shards):
        said, coordinator.out = coordinator.out, []
        for to, message in said:
            if to.role == "shard":
                shards[to.number].handle(message)
            else:
                for_workers.append((to, message))
        for shard in shards:
            heard, shard.out = shard.out, []
            for _, message in heard:
                coordinator.handle(message, coordinator.now)
    return for_workers


def test_a_shard_that_started_anew_does_not_take_the_place_of_what_it_was() -> None:
    """It would carry out steps without the gradients that the one before it had (schedule 177431)."""
    _, coordinator, shard = roles()
    again = ShardRole(0, 2, lambda name, done: done(restored(None, 0, 1)), lambda name, server: None)
    again.handle(Load(coordinator.incarnation, shard.boot, "start"))  # a late copy
    assert again.shard is None
    again.out.clear()  # its hello is lost
    again.tick()
    exchange(coordinator, again)
    assert coordinator.incarnation == again.incarnation == 2


def waiting_shard() -> tuple[Disk, CoordinatorRole, ShardRole, list[tuple[str, Done]]]:
    """A coordinator whose one shard was asked to load, and the loads that were begun."""
    disk, loads = Disk("sync", {"global_batch": 2, "batch": 2}), list[tuple[str, Done]]()
    coordinator = CoordinatorRole(disk, Account(), CoordinatorSettings(shards=1, examples=100, patience=5.0))
    shard = ShardRole(0, 1, lambda name, done: loads.append((name, done)), lambda name, server: None)
    exchange(coordinator, shard)
    return disk, coordinator, shard, loads


def test_a_shard_that_loads_for_long_is_heard_all_the_time() -> None:
    _, coordinator, shard, loads = waiting_shard()
    for second in range(1, 30 * 5):  # of patience 5
        coordinator.tick(float(second))
        shard.tick()
        exchange(coordinator, shard)
        assert coordinator.shards.take_silent() == []
    ((name, done),) = loads  # asked often, loaded once
    assert name == "start" and coordinator.epoch is None
    done(restored(None, 0, 1))
    exchange(coordinator, shard)
    assert coordinator.epoch is not None and shard.incarnation == coordinator.incarnation == 1


def test_a_part_serves_the_newest_incarnation_that_asks_for_it() -> None:
    _, coordinator, shard, loads = waiting_shard()
    coordinator._new_incarnation()  # another shard was lost
    exchange(coordinator, shard)
    ((_, done),) = loads
    done(restored(None, 0, 1))
    exchange(coordinator, shard)
    assert coordinator.epoch is not None and shard.incarnation == coordinator.incarnation == 2


def test_loads_of_two_snapshots_come_one_after_the_other() -> None:
    disk, coordinator, shard, loads = waiting_shard()
    disk.snapshots.append(("step-2", disk.snapshots[0][1]))
    coordinator._new_incarnation()
    exchange(coordinator, shard)
    assert [name for name, _ in loads] == ["start"]
    loads[0][1](restored(None, 0, 1))
    exchange(coordinator, shard)
    assert [name for name, _ in loads] == ["start", "step-2"] and shard.shard is None
    loads[1][1](restored(None, 0, 1))
    exchange(coordinator, shard)
    assert coordinator.epoch is not None and shard.incarnation == coordinator.incarnation == 2


def test_an_old_hello_of_a_worker_that_was_given_up_lets_it_not_in() -> None:
    _, coordinator, shard = roles()
    coordinator.handle(Hello(0, 7), 0.0)
    coordinator.handle(Report(1, 0, 7, 1), 0.0)
    exchange(coordinator, shard)
    coordinator.tick(6.0)
    coordinator.handle(Hello(0, 7), 6.0)
    assert (To("worker", 0), Rejoin(7)) in coordinator.out
    coordinator.handle(Hello(0, 8), 6.0)
    assert (To("worker", 0), Welcome(1, 8)) in coordinator.out


def test_a_cut_that_cannot_be_written_does_not_stand_in_the_way_of_the_next() -> None:
    disk, coordinator, shard = roles()
    for error in ("disk full", ""):
        coordinator.running.passes.take_cut()
        exchange(coordinator, shard)
        shard.saved(1, coordinator.running.cuts.current.name, error)
        exchange(coordinator, shard)
    assert len(disk.snapshots) == 2


# Each of these is a mistake that somebody could make; the schedules must find it.


def orders_are_done_again_when_told_again(patch: pytest.MonkeyPatch) -> None:
    receive = Shard.receive

    def told(self: Shard, order: Order) -> None:
        if order.number <= self.done and order.number == self.done:
            self.done -= 1
        receive(self, order)

    patch.setattr(Shard, "receive", told)


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
            message = Pull(
                message.incarnation,
                message.worker,
                message.boot,
                message.pull,
                0,
                message.ids,
                message.tables,
            )
        handle(self, message)  # type: ignore[arg-type]

    patch.setattr(ShardRole, "handle", handled)


def one_shard_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A worker reports when the first shard has its part."""
    handle = WorkerRole.handle

    def handled(self: WorkerRole, message: object) -> None:
        if isinstance(message, Taken) and self.state == "giving":
            give = self._unanswered.get(message.shard)
            if isinstance(give, Give) and give.lease == message.lease:
                self._unanswered = {message.shard: give}
        handle(self, message)  # type: ignore[arg-type]

    patch.setattr(WorkerRole, "handle", handled)


def an_old_incarnation_is_served(patch: pytest.MonkeyPatch) -> None:
    handle = ShardRole.handle

    def handled(self: ShardRole, message: object) -> None:
        if not isinstance(message, shard_role.Load):
            object.__setattr__(message, "incarnation", self.incarnation)
        handle(self, message)  # type: ignore[arg-type]

    patch.setattr(ShardRole, "handle", handled)


def an_order_is_said_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Orders, "resend", lambda self: None)


def a_snapshot_counts_before_all_parts_are_written(patch: pytest.MonkeyPatch) -> None:
    saved = SnapshotCuts.part_saved

    def part_saved(self: SnapshotCuts, shard: int, name: str, error: str) -> None:
        for number in range(self._shards):
            saved(self, number, name, error)

    patch.setattr(SnapshotCuts, "part_saved", part_saved)


def a_pull_answers_with_something_else(patch: pytest.MonkeyPatch) -> None:
    pull = Shard.pull

    def pulled(self: Shard, ids: object, tables: object, dense: bool, **ahead: object) -> object:
        return pull(self, ids, tables, dense=dense)[0], torch.zeros_like(self.server.flat), {}  # type: ignore[arg-type]

    patch.setattr(Shard, "pull", pulled)


def a_begin_may_see_anything(patch: pytest.MonkeyPatch) -> None:
    begin = Work.begin

    def begun(self: Work, worker: int, token: int) -> Flight:
        flight = replace(begin(self, worker, token), version=0)
        self.flying[flight.lease.number] = flight
        return flight

    patch.setattr(Work, "begin", begun)


def a_worker_steps_while_its_replica_is_shown(patch: pytest.MonkeyPatch) -> None:
    give = WorkerRole._continue

    def went_on(self: WorkerRole) -> None:
        attendance = self.replicas.attendance
        frozen, attendance.frozen = attendance.frozen, 0
        give(self)
        attendance.frozen = attendance.frozen or frozen

    patch.setattr(WorkerRole, "_continue", went_on)


def steps_on_the_way_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    met = Meetings.met
    patch.setattr(Meetings, "met", lambda self, message: met(self, replace(message, lease=None)))


def one_that_is_lost_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Meetings, "lost", lambda self, worker: None)


def a_meeting_is_called_once(patch: pytest.MonkeyPatch) -> None:
    call = Meetings.call

    def call_once(self: Meetings) -> None:
        if self.current is not None and self.current.number != getattr(self, "called", 0):
            self.called = self.current.number  # type: ignore[attr-defined]
            call(self)

    patch.setattr(Meetings, "call", call_once)


def an_offer_is_answered_once(patch: pytest.MonkeyPatch) -> None:
    take = SyncServer.take

    def taken(self: SyncServer, offer: Offer) -> None:
        if (offer.boot, offer.number) != self._answered.get(offer.worker):
            take(self, offer)

    patch.setattr(SyncServer, "take", taken)


def a_switch_to_servers_leaves_what_replicas_learned(patch: pytest.MonkeyPatch) -> None:
    """The shards keep the states that they had."""
    result = SyncServer._result

    def made(self: SyncServer, kind: object, offers: list[OfferedValues]) -> object:
        state = {name: values.clone() for name, values in self.server.optimizer_state.items()}
        found = result(self, kind, offers)  # type: ignore[arg-type]
        for name, values in state.items():
            self.server.optimizer_state[name].copy_(values)
        return found

    patch.setattr(SyncServer, "_result", made)


def a_ring_counts_without_the_member_that_fell_out(patch: pytest.MonkeyPatch) -> None:
    """Its sum has a gradient that will be computed, and applied, once more."""

    def ask_again(self: WorkerLeases, held: list[HeldReport]) -> None:
        for report in held:
            if self._sessions.get(report.worker) is not None:
                self._passes.epoch.arrived(report.worker, report.done.lease, report.done.content)
                self._ask(report.worker)

    patch.setattr(WorkerLeases, "_ask_again", ask_again)


def a_report_of_a_ring_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AllReduceGroups, "hold", lambda self, report: [report])


def a_lagging_worker_takes_the_weights_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "state", lambda self: {})


def a_resize_does_not_wait_for_replicas(patch: pytest.MonkeyPatch) -> None:
    """The strategy keeps its name, but another share of the global batch is a batch."""
    concerns, carry_out_requests = Meetings.concerns, simulator.carry_out_requests
    asked: list[CoordinatorRole] = []

    def carried_out(role: CoordinatorRole, *how: object) -> None:
        asked.append(role)
        carry_out_requests(role, *how)  # type: ignore[arg-type]

    def concerned(self: Meetings, strategy: Strategy) -> bool:
        epoch = asked[-1].epoch
        assert epoch is not None
        return strategy.name != epoch.coordinator.strategy.name and concerns(self, strategy)

    patch.setattr(simulator, "carry_out_requests", carried_out)
    patch.setattr(Meetings, "concerns", concerned)


def whoever_is_dismissed_takes_its_lease_along(patch: pytest.MonkeyPatch) -> None:
    def dismiss(self: WorkerLeases, worker: int) -> None:
        if self._sessions.get(worker) is not None:
            self._sessions.close(worker)
            self._meetings.lost(worker)

    patch.setattr(WorkerLeases, "dismiss", dismiss)


def whoever_is_too_many_stays(patch: pytest.MonkeyPatch) -> None:
    resize = CoordinatorRole.resize

    def resized(self: CoordinatorRole, workers: int) -> None:
        resize(self, max(workers, len(self.sessions)))
        self.sessions.limit = workers

    patch.setattr(CoordinatorRole, "resize", resized)


def both_copies_count(patch: pytest.MonkeyPatch) -> None:
    """Two workers have computed the same examples, and the second gradient is used like the first."""
    arrived = Coordinator._arrived

    def taken(self: Coordinator, worker: int, lease: int, version: int) -> Iterator[Action]:
        original = self.work.copies.original_of.get(lease, lease)
        if original in self.work.copies.by_original:
            copy = self.work.drop_copy(original)
            self.work.flights_of[copy.worker].add(copy.lease.number)
            self.work._fly(copy)
        return arrived(self, worker, lease, version)

    patch.setattr(Coordinator, "_arrived", taken)


@pytest.mark.parametrize(
    "mistake",
    [
        both_copies_count,
        a_resize_does_not_wait_for_replicas,
        whoever_is_dismissed_takes_its_lease_along,
        whoever_is_too_many_stays,
        a_worker_steps_while_its_replica_is_shown,
        steps_on_the_way_are_not_waited_for,
        one_that_is_lost_is_waited_for,
        a_meeting_is_called_once,
        an_offer_is_answered_once,
        a_switch_to_servers_leaves_what_replicas_learned,
        a_ring_counts_without_the_member_that_fell_out,
        a_report_of_a_ring_counts_at_once,
        a_lagging_worker_takes_the_weights_alone,
        a_pull_answers_with_something_else,
        a_begin_may_see_anything,
        orders_are_done_again_when_told_again,
        an_ended_lease_takes_a_gradient,
        a_pull_does_not_wait_for_its_version,
        one_shard_is_enough,
        an_old_incarnation_is_served,
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
