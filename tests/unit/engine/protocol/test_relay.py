"""A relay: rows cross once, gradients and offers as sums, and what shards cannot take as one is sent one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.engine.protocol.messages import (
    Give,
    Load,
    Message,
    Pull,
    RelayAnswer,
    RelayRequest,
    Rows,
    Taken,
    Tell,
    To,
)
from gearshift.engine.protocol.relay import RelayRole
from gearshift.engine.protocol.relay_gives import HOLD, sum_of
from gearshift.engine.protocol.relay_link import MISSED, RelayLink
from gearshift.engine.protocol.relay_messages import Attend, MachineGive, MachineOffer, MachinePull
from gearshift.engine.protocol.relay_pulls import RelayPulls
from gearshift.engine.protocol.replica_messages import (
    Occasion,
    Offer,
    OfferedValues,
    OfferKind,
    Target,
    choices_text,
)
from gearshift.engine.protocol.shard import ShardRole
from gearshift.parameters.replicas.arithmetic import centre_step
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ApplyStep, Assemble, Drop, Order
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of
from tests.protocol.world import SIZE, fresh_shard, gradient, ids_of


class Machine:
    """Workers, their relay and one shard; what is said arrives at once."""

    def __init__(self, workers: int = 2) -> None:
        self.shard = ShardRole(0, 1, lambda name, done: done(fresh_shard(0, 1)), lambda name, server: None)
        self.shard.handle(Load(1, 1, "start"))
        self.relay = RelayRole(0, 5, 1)
        self.crossed: list[Message] = []  # the link
        self.answers: dict[int, list[Any]] = {worker: [] for worker in range(workers)}
        self.orders = 0
        for worker in range(workers):
            self.relay.handle(Attend(worker, 1))

    @property
    def server(self) -> Server:
        assert self.shard.shard is not None
        return self.shard.shard.server

    def request(self, worker: int, request: Pull | Give | Offer, choices: str = "") -> None:
        self.relay.handle(RelayRequest(worker, 0, choices, request))
        self.talk()

    def talk(self) -> None:
        while self.relay.out or self.shard.out:
            out, self.relay.out = self.relay.out, []
            for to, message in out:
                if to.role == "shard":
                    self.crossed.append(message)
                    self.shard.handle(message)  # type: ignore[arg-type]
                elif isinstance(message, RelayAnswer):
                    self.answers[to.number].append(message.answer)
            out, self.shard.out = self.shard.out, []
            for to, message in out:
                if to.role == "relay":
                    self.relay.handle(message)  # type: ignore[arg-type]

    def order(self, what: ApplyStep | Drop | Assemble) -> None:
        self.orders += 1
        self.shard.handle(Tell(1, Order(self.orders, what)))
        self.talk()

    def tick(self, ticks: int, workers: tuple[int, ...] = (0, 1)) -> None:
        for _ in range(ticks):
            for worker in workers:
                self.relay.handle(Attend(worker, 1))
            self.relay.tick()
            self.talk()


def pull(worker: int, ids: np.ndarray, version: int = 0) -> Pull:
    return Pull(1, worker, 1, 1 + version, version, (ids,), (np.zeros(len(ids), np.uint16),))


def test_a_model_without_rows_pulls_its_dense_values_once() -> None:
    pulls = RelayPulls(0, 5, 0)
    for worker in range(3):
        pulls.ask(Pull(1, worker, 1, 1, 0, (), (), True))
    ((_, crossed),) = pulls.out
    assert isinstance(crossed, MachinePull) and crossed.dense


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 39), unique=True), min_size=1, max_size=4))
def test_a_row_crosses_the_link_once_in_a_round(wanted: list[list[int]]) -> None:
    machine = Machine(len(wanted))
    for worker, ids in enumerate(wanted):
        machine.request(worker, pull(worker, np.array(sorted(ids), np.int64)))
    for worker, ids in enumerate(wanted):
        (rows,) = machine.answers[worker]
        assert isinstance(rows, Rows)
        expected = machine.server.stores[0].peek(np.array(sorted(ids), np.int64))
        assert np.array_equal(rows.rows[0], expected) and torch.equal(rows.dense.flat, machine.server.flat)
    pulls = [one for one in machine.crossed if isinstance(one, MachinePull)]
    crossed = [int(id_) for one in pulls for id_ in one.ids[0]]
    assert (
        sorted(crossed) == sorted({id_ for ids in wanted for id_ in ids})
        and sum(one.dense for one in pulls) == 1
    )


def test_a_new_round_fetches_rows_anew() -> None:
    machine, ids = Machine(), np.arange(5, dtype=np.int64)
    machine.request(0, pull(0, ids))
    machine.request(0, pull(0, ids, version=1))
    assert len(machine.answers[0]) == 1, "it has not been made yet"
    machine.request(0, Give(1, 0, 7, gradient(0, 1)))
    machine.tick(HOLD)
    machine.order(ApplyStep(1, ((7, 1.0),)))
    assert machine.answers[0][-1].step == 1
    assert np.array_equal(machine.answers[0][-1].rows[0], machine.server.stores[0].peek(ids))


def test_gradients_cross_as_one_and_make_the_same_step() -> None:
    machine, alone = Machine(), fresh_shard(0, 1)
    for worker in range(2):
        machine.request(worker, Give(1, worker, 10 + worker, gradient(worker, 2)))
    (give,) = machine.crossed
    assert isinstance(give, MachineGive) and give.leases == ((10, 0), (11, 1)) and give.push.gradients == 2
    assert [machine.answers[worker][0].spoiled for worker in range(2)] == [False, False]
    machine.order(ApplyStep(1, ((10, 1.0), (11, 1.0))))
    alone.apply_group([(gradient(worker, 2), 1.0) for worker in range(2)], lr_scale=1.0)
    torch.testing.assert_close(machine.server.flat, alone.flat)
    ids = np.union1d(ids_of(0, 2), ids_of(1, 2))
    np.testing.assert_allclose(machine.server.stores[0].peek(ids), alone.stores[0].peek(ids), rtol=1e-6)
    assert machine.shard.shard is not None and not machine.shard.shard.waiting


def test_one_that_gives_nothing_is_not_waited_for_long() -> None:
    machine = Machine()
    machine.request(0, Give(1, 0, 10, gradient(0, 2)))
    machine.tick(HOLD - 1)
    assert not machine.crossed
    machine.tick(1)
    assert [one.lease for one in machine.answers[0]] == [10]


def test_a_sum_with_a_lease_that_ended_does_not_count() -> None:
    machine = Machine()
    machine.order(Drop(10))
    for worker in range(2):
        machine.request(worker, Give(1, worker, 10 + worker, gradient(worker, 2)))
    assert all(machine.answers[worker] == [Taken(1, 0, 10 + worker, spoiled=True)] for worker in range(2))
    assert machine.shard.shard is not None and not machine.shard.shard.waiting


def test_a_gradient_counts_once_in_whatever_company_it_comes() -> None:
    """The relay restarts, and one worker turns to the shard meanwhile."""
    machine = Machine(3)
    for worker in range(3):
        machine.request(worker, Give(1, worker, 10 + worker, gradient(worker, 2)))
    machine.shard.handle(Give(1, 0, 10, gradient(0, 2)))  # as if nobody had answered
    machine.relay = RelayRole(0, 6, 1)
    for worker in (1, 2):
        machine.relay.handle(Attend(worker, 1))
    for worker in (1, 2):
        machine.request(worker, Give(1, worker, 10 + worker, gradient(worker, 2)))
    assert machine.answers[2][-1].spoiled, "the shard has it in another sum"
    machine.order(ApplyStep(1, ((10, 1.0), (11, 1.0), (12, 1.0))))
    alone = fresh_shard(0, 1)
    alone.apply_group([(gradient(worker, 2), 1.0) for worker in range(3)], lr_scale=1.0)
    torch.testing.assert_close(machine.server.flat, alone.flat)


def test_a_gradient_that_was_not_finite_adds_nothing() -> None:
    broken = replace(gradient(0, 2), examples=0.0, dense=torch.full((SIZE,), torch.nan))
    assert torch.equal(sum_of([broken, gradient(1, 2)]).dense, gradient(1, 2).dense)


def choices(name: str, **given: Any) -> Any:
    return choices_of(make_strategy(name, {"global_batch": 8, "batch": 4, **given}))


def offer(worker: int, kind: OfferKind, values: OfferedValues, number: int = 1, meeting: int = 1) -> Offer:
    return Offer(1, worker, 1, number, kind, Occasion(1, meeting, 1), values)


def weights(worker: int) -> torch.Tensor:
    return torch.linspace(-worker - 1, 2 * worker, SIZE)


@pytest.mark.parametrize("finished", [(), (1,), (0, 1, 2)])
def test_a_mean_of_sums_is_the_mean(finished: tuple[int, ...]) -> None:
    """Replicas that have finished do not count, unless all have."""
    machine = Machine(2)
    machine.order(Assemble(1, 1, choices_text(choices("model_averaging")), ((0, 1), (1, 1), (2, 1))))
    for worker in range(2):
        value = OfferedValues(0.0 if worker in finished else 1.0, weights(worker))
        machine.request(worker, offer(worker, OfferKind.MEAN, value))
    (joint,) = machine.crossed
    assert isinstance(joint, MachineOffer) and joint.members == ((0, 1, 1), (1, 1, 1))
    machine.shard.handle(offer(2, OfferKind.MEAN, OfferedValues(0.0 if 2 in finished else 1.0, weights(2))))
    machine.talk()
    counted = [weights(worker) for worker in range(3) if worker not in finished or len(finished) == 3]
    for worker in range(2):
        (target,) = machine.answers[worker]
        torch.testing.assert_close(target.flat, torch.stack(counted).mean(0))


@pytest.mark.parametrize("merge", ["elastic", "delta"])
def test_workers_move_the_centre_one_after_the_other(merge: str) -> None:
    machine, chosen = Machine(), choices("easgd", merge=merge)
    machine.order(Assemble(1, 1, choices_text(chosen), ((0, 1), (1, 1))))
    centre = machine.server.flat.clone()
    for worker in range(2):
        values = OfferedValues(1.0, weights(worker))
        machine.request(worker, offer(worker, OfferKind.CENTRE, values, meeting=0), choices_text(chosen))
    assert len(machine.crossed) == 1
    for worker in range(2):
        expected = centre_step(centre, weights(worker), chosen)
        (target,) = machine.answers[worker]
        assert isinstance(target, Target)
        torch.testing.assert_close(target.flat, expected)
    torch.testing.assert_close(machine.server.flat, centre)


def test_an_offer_of_one_that_was_given_up_does_not_stop_the_others() -> None:
    machine = Machine(2)
    machine.order(Assemble(1, 1, choices_text(choices("model_averaging")), ((0, 1),)))
    for worker in range(2):
        machine.request(worker, offer(worker, OfferKind.MEAN, OfferedValues(1.0, weights(worker))))
    assert torch.equal(machine.answers[0][0].flat, weights(0)) and not machine.answers[1]
    assert [len(one.members) for one in machine.crossed] == [2, 1, 1]


def test_a_link_is_alive_while_the_relay_answers() -> None:
    link = RelayLink(lambda: 3)
    assert link.to is None
    assert link.tick() == To("relay", 3) and link.to is None, "it has not answered yet"
    link.heard(3)
    for _ in range(MISSED):
        assert link.to == To("relay", 3)
        link.tick()
    link.tick()
    assert link.to is None
