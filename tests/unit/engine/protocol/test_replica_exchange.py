"""Replicas that meet by messages do what replicas in one memory do: worker and shard sides, without loss or delay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.replica_messages import (
    ExchangePlan,
    Go,
    Meet,
    Met,
    Occasion,
    Offer,
    OfferedValues,
    OfferKind,
    Target,
    choices_in,
    choices_text,
)
from gearshift.engine.protocol.sync_server import SyncServer
from gearshift.optim.first_order import Adam, DenseOptimizer, Momentum
from gearshift.parameters.push import Push
from gearshift.parameters.replicas.group import Replicas
from gearshift.parameters.shard import Assemble
from gearshift.sync.exchange import Choices
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of
from tests.protocol.world import SIZE, fresh_shard, gradient, layout_of, whole_server

ADAM, MOMENTUM = Adam(lr=0.05), Momentum(lr=0.1)


def choices(name: str, **settings: Any) -> Choices:
    found = choices_of(make_strategy(name, {"global_batch": 8, "batch": 4, **settings}))
    assert found is not None
    return found


class Net:
    """Workers and shards of one generation; what is said arrives at once, and time passes when we say so."""

    def __init__(
        self, chosen: Choices, workers: int, shards: int = 2, optimizer: DenseOptimizer = MOMENTUM
    ) -> None:
        self.plan, self.layout, self.now = ExchangePlan(1, 1, choices_text(chosen)), layout_of(shards), 0.0
        self.servers = [SyncServer(fresh_shard(i, shards, optimizer), 1, i) for i in range(shards)]
        self.met: list[Met] = []
        self.said: list[Message] = []
        self.assembly = 0
        self.workers: dict[int, Exchanger] = {}
        for number in range(workers):
            worker = Exchanger(number, whole_server(1, optimizer), self.layout, lambda: self.now)
            worker.restart(10 + number)
            worker.incarnation = 1
            self.workers[number] = worker
        self.assemble()
        for worker in self.workers.values():
            worker.busy(self.plan)
        self.pump()

    def assemble(self) -> None:
        self.assembly += 1
        members = tuple((n, worker.boot) for n, worker in self.workers.items())
        for server in self.servers:
            server.assemble(Assemble(self.assembly, self.plan.generation, self.plan.choices, members))

    def pump(self) -> None:
        while out := [one for role in (*self.workers.values(), *self.servers) for one in role.take_out()]:
            for to, message in out:
                self.said.append(message)
                self.deliver(to, message)

    def deliver(self, to: To, message: Any) -> None:
        if to.role == "shard":
            self.servers[to.number].take(message)
        elif to.role == "coordinator":
            self.met.append(message)
        elif to.number in self.workers:
            self.workers[to.number].handle(message)

    def step(self, worker: int, first: int) -> list[Push]:
        return self.workers[worker].step(self.layout.split(gradient(first, 4)), 1.0)

    def meet(self, number: int, *, show: bool = False) -> None:
        for worker in list(self.workers.values()):
            worker.handle(Meet(1, worker.boot, number, self.assembly, show, self.plan))
        self.pump()

    def go(self, number: int) -> None:
        for worker in self.workers.values():
            worker.handle(Go(1, worker.boot, number, self.plan))
        self.pump()

    def exchange_once(self) -> None:
        """In the background, all that are due."""
        self.now = max(worker.due or 0.0 for worker in self.workers.values())
        for worker in self.workers.values():
            worker.wake()
        self.pump()

    def flat(self, worker: int) -> Tensor:
        replica = self.workers[worker].held.replica
        assert replica is not None
        return replica.flat

    @property
    def shown(self) -> Tensor:
        return torch.cat([server.server.flat for server in self.servers])


def in_one_memory(chosen: Choices, workers: int, optimizer: DenseOptimizer) -> Replicas:
    replicas = Replicas(whole_server(1, optimizer), chosen)
    for worker in range(workers):
        replicas.join(worker)
    return replicas


@pytest.mark.parametrize("mode", ["params", "frozen_v", "params_m_v"])
@pytest.mark.parametrize("shards", [1, 3])
def test_rounds_are_those_of_one_memory(mode: str, shards: int) -> None:
    chosen = choices("k_step_adam", exchange=2, warmup_steps=0, mode=mode)
    net, there = Net(chosen, 3, shards, ADAM), in_one_memory(chosen, 3, ADAM)
    for k in range(1, 5):
        for worker in range(3):
            for first in (k, 2 * k + worker):
                net.step(worker, first)
                there.step(worker, gradient(first, 4), lr_scale=1.0)
        net.meet(k)
        there.meet()
        for worker in range(3):
            torch.testing.assert_close(net.flat(worker), there.members[worker].flat, rtol=1e-5, atol=1e-6)
        assert torch.equal(net.flat(0), net.flat(1)) and torch.equal(net.flat(0), net.shown)
    assert [met.number for met in net.met] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    counts = net.met[-1].counts
    assert (counts.batches, counts.exchanges) == (8, 4)
    factor = {"params": 1, "frozen_v": 2, "params_m_v": 3}[mode]
    assert counts.bytes == 4 * factor * 2 * 4 * SIZE


def test_a_show_is_what_a_fold_gives() -> None:
    """Centre, global model, mean, with the mean state; and steps wait for `Go`."""
    for name, settings in (("easgd", {}), ("bmuf", {"momentum": 0.5}), ("model_averaging", {})):
        chosen = choices(name, **settings)
        net, there = Net(chosen, 2), in_one_memory(chosen, 2, MOMENTUM)
        for k in range(3):
            for worker in range(2):
                net.step(worker, k + worker)
                there.step(worker, gradient(k + worker, 4), lr_scale=1.0)
            net.exchange_once()
            for worker in range(2):
                there.send(worker)
            for members in [(0,), (1,)] if chosen.exchange == "centre" else [(0, 1)]:
                there.receive(members)
        net.meet(1, show=True)
        there.show()
        torch.testing.assert_close(net.shown, there.server.flat, rtol=1e-6, atol=1e-7, msg=name)
        state = torch.cat([server.server.optimizer_state["velocity"] for server in net.servers])
        torch.testing.assert_close(state, there.server.optimizer_state["velocity"], rtol=1e-6, atol=1e-7)
        assert not any(worker.may_step for worker in net.workers.values())
        net.go(1)
        assert all(worker.may_step for worker in net.workers.values())


def test_elasticity_0_is_no_synchronisation() -> None:
    net, alone = Net(choices("easgd", elasticity=0.0), 2), whole_server(1)
    for k in range(4):
        net.step(0, k)
        net.step(1, k + 5)
        net.exchange_once()
        alone.apply(gradient(k, 4), lr_scale=1.0)
    assert torch.equal(net.flat(0), alone.flat)
    assert torch.equal(net.shown, whole_server(1).flat)
    assert net.workers[0].held.counts.exchanges > 3


def test_bmuf_without_momentum_is_model_averaging() -> None:
    nets = [
        Net(choices("bmuf", exchange=2, momentum=0.0, outer_rate=1.0), 2),
        Net(choices("model_averaging", exchange=2), 2),
    ]
    for net in nets:
        for k in range(1, 4):
            for worker in range(2):
                net.step(worker, 3 * k + worker)
            net.meet(k)
    assert torch.equal(nets[0].flat(0), nets[1].flat(0)) and torch.equal(nets[0].shown, nets[1].shown)


def test_every_k_with_the_centre_is_in_the_training_loop() -> None:
    net = Net(choices("easgd", exchange=3), 1)
    for k in range(6):
        net.step(0, k)
        assert net.workers[0].in_the_way == (k % 3 == 2)
        net.pump()
        assert not net.workers[0].in_the_way
    counts = net.workers[0].held.counts
    assert counts.batches / counts.exchanges == 3


def test_an_offer_that_is_said_again_moves_the_centre_once() -> None:
    net = Net(choices("easgd", exchange=1), 1, shards=1)
    net.step(0, 1)
    ((_, offer),) = net.workers[0].take_out()
    assert isinstance(offer, Offer) and offer.kind is OfferKind.CENTRE
    server = net.servers[0]
    server.take(offer)
    moved = net.shown.clone()
    server.take(offer)
    assert torch.equal(net.shown, moved)
    (_, first), (_, again) = server.take_out()
    assert isinstance(first, Target) and torch.equal(first.flat, again.flat)


def test_who_is_lost_in_a_meeting_is_not_waited_for() -> None:
    net = Net(choices("k_step_adam", exchange=1, warmup_steps=0, mode="params"), 3)
    for worker in range(3):
        net.step(worker, worker)
    lost = net.workers.pop(2)
    net.meet(1)
    assert net.met == [] and lost.held.replica is not None
    net.assemble()
    net.pump()
    assert {met.worker for met in net.met} == {0, 1}
    assert torch.equal(net.flat(0), net.flat(1))


def test_a_shard_that_has_not_heard_of_all_members_waits() -> None:
    """Else it would make the mean of some, and wait for them for ever when the others come (schedule 249)."""
    net = Net(choices("model_averaging", exchange=1), 2)
    for worker in range(2):
        net.step(worker, worker)
    late = net.servers[1]
    late.assemble(Assemble(net.assembly, 1, net.plan.choices, ((0, 10),)))
    net.assembly += 1
    net.meet(1)
    assert net.met == []
    for server in net.servers:
        server.assemble(Assemble(net.assembly, 1, net.plan.choices, ((0, 10), (1, 11))))
    net.pump()
    assert {met.worker for met in net.met} == {0, 1} and torch.equal(net.flat(0), net.flat(1))


def test_another_strategy_keeps_replicas_and_another_lineage_forks_them() -> None:
    net = Net(choices("easgd"), 2)
    net.step(0, 3)
    own = net.flat(0).clone()
    net.meet(1, show=True)
    net.plan = ExchangePlan(2, 1, choices_text(choices("bmuf")))
    net.assemble()
    net.go(1)
    assert torch.equal(net.flat(0), own) and not torch.equal(net.flat(0), net.flat(1))
    net.meet(2, show=True)
    net.plan = replace(net.plan, generation=3, lineage=3)
    net.assemble()
    net.go(2)
    assert torch.equal(net.flat(0), net.flat(1)) and torch.equal(net.flat(0), net.shown)
    net.meet(3, show=True)
    net.plan = ExchangePlan(4)
    net.go(3)
    assert all(worker.held.replica is None and worker.may_step for worker in net.workers.values())


def bmuf_servers(velocity: float) -> list[SyncServer]:
    """Of two shards that loaded a checkpoint with this velocity."""
    servers = [fresh_shard(i, 2, MOMENTUM) for i in range(2)]
    for server in servers:
        server.block_velocity = torch.full_like(server.flat, velocity)
    return [SyncServer(server, 1, i) for i, server in enumerate(servers)]


def test_a_resumed_bmuf_goes_on_with_its_velocity_as_replicas_in_one_memory_do() -> None:
    chosen = choices("bmuf", exchange={"every": 2}, momentum=0.5)
    net = Net(chosen, 1)
    net.servers = bmuf_servers(0.25)
    net.assemble()
    net.pump()
    truth = Replicas(whole_server(2, MOMENTUM), chosen)
    truth.common.take_velocity(torch.full_like(truth.server.flat, 0.25))
    truth.join(0)
    net.step(0, 3)
    truth.step(0, gradient(3, 4), lr_scale=1.0)
    net.meet(1)
    truth.meet()
    assert torch.equal(net.flat(0), truth.members[0].flat)
    moved = torch.cat([server.server.block_velocity for server in net.servers])
    assert torch.equal(moved, truth.common.global_step.velocity) and not torch.equal(
        moved, moved[:1].expand(SIZE)
    )


def test_another_generation_begins_without_velocity() -> None:
    text = choices_text(choices("bmuf", momentum=0.5))
    (later, _), (other, _) = bmuf_servers(0.25), bmuf_servers(0.25)
    later.assemble(Assemble(1, 2, text))  # the run began with sync, and switched
    assert torch.equal(later.server.block_velocity, torch.zeros_like(later.server.flat))
    other.assemble(Assemble(1, 1, choices_text(choices("easgd"))))
    assert other.server.block_velocity is None


def test_one_that_has_no_replica_yet_takes_part_with_nothing() -> None:
    net = Net(choices("model_averaging", exchange=1), 2)
    net.step(0, 1)
    only = net.flat(0).clone()
    net.workers[1].restart(12)
    net.workers[1].incarnation = 1
    net.assemble()
    net.meet(1)
    assert {met.worker for met in net.met} == {0, 1}
    assert torch.equal(net.flat(0), only) and torch.equal(net.flat(1), only), "it forks what they met at"


def test_a_finished_trainer_goes_on_without_weight() -> None:
    net = Net(choices("model_averaging", merge="elastic"), 2)
    net.step(0, 1)
    net.step(1, 2)
    net.exchange_once()
    for _ in range(2):
        net.workers[1].tick(asking=True)
    net.pump()
    given = net.flat(0).clone()
    net.exchange_once()
    assert torch.equal(net.shown, given), "the mean is of the one that trains"
    net.workers[1].busy(net.plan)
    assert net.workers[1].held.replica is not None and net.workers[1].held.replica.weight == 1.0


@pytest.mark.parametrize("exchange", ["background", 3, "2s"])
def test_choices_travel_whole(exchange: Any) -> None:
    chosen = choices("bmuf", exchange=exchange, momentum=0.3, nesterov=True)
    assert choices_in(choices_text(chosen)) == chosen
    assert len(choices_text(chosen)) < 500, "a message has room for it"


def offered(worker: int, boot: int, number: int, kind: OfferKind, meeting: int = 0) -> Offer:
    return Offer(1, worker, boot, number, kind, Occasion(1, meeting), OfferedValues(1.0, torch.ones(SIZE)))


def alone(name: str, *members: tuple[int, int], **settings: Any) -> SyncServer:
    """One shard, with these members."""
    server = SyncServer(fresh_shard(0, 1), 1, 0)
    server.assemble(Assemble(1, 1, choices_text(choices(name, **settings)), members))
    return server


def test_a_worker_that_was_given_up_does_not_move_the_centre() -> None:
    """It may not know it yet; servers may have taken the weights over meanwhile (schedule 849)."""
    server = alone("easgd", (0, 10), (1, 11))
    server.take(offered(0, 10, 1, OfferKind.CENTRE))
    server.assemble(Assemble(2, 1, choices_text(choices("easgd")), ((1, 12),)))
    before = server.server.flat.clone()
    for worker, boot in ((0, 10), (1, 11)):  # one that left, and one that has started again
        server.take(offered(worker, boot, 2, OfferKind.CENTRE))
    assert torch.equal(server.server.flat, before)
    server.take(offered(1, 12, 1, OfferKind.CENTRE))
    assert not torch.equal(server.server.flat, before)


def test_an_offer_that_is_resent_gets_the_result_of_its_own_meeting() -> None:
    """Others may have met since, without the worker that asks (schedule 1402)."""
    server = alone("model_averaging", (0, 10), (1, 11), exchange={"every": 2})
    for worker in (0, 1):
        server.take(offered(worker, 10 + worker, 1, OfferKind.MEAN, meeting=1))
    first = server.take_out()[0][1]
    server.assemble(
        Assemble(2, 1, choices_text(choices("model_averaging", exchange={"every": 2})), ((1, 11),))
    )
    server.take(
        replace(
            offered(1, 11, 2, OfferKind.SHOW, meeting=2),
            values=OfferedValues(1.0, torch.empty(0), dict(server.server.optimizer_state)),
        )
    )
    server.take_out()
    server.take(offered(0, 10, 1, OfferKind.MEAN, meeting=1))
    again = server.take_out()[0][1]
    assert isinstance(first, Target) and isinstance(again, Target) and torch.equal(first.flat, again.flat)
