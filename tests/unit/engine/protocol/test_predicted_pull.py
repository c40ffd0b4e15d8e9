"""Over the protocol a pull asks for the prediction that its work was given, and the shard answers with it."""

from __future__ import annotations

import time

import torch

from gearshift.engine.protocol.messages import (
    Assignment,
    DenseValues,
    Give,
    Load,
    Pull,
    Rows,
    Tell,
    Welcome,
)
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.protocol.worker import WorkerRole
from gearshift.parameters.shard import ApplyStep, Order
from gearshift.sync.events import STORED, Begin, Extrapolation, Lease
from tests.protocol.world import fresh_shard, gradient, ids_of, layout_of, whole_server
from tests.shard_ids import wanted


def shard_after_a_step() -> ShardRole:
    """It has applied one gradient, and another waits."""
    role = ShardRole(0, 1, lambda name, done: done(fresh_shard(0, 1)), lambda name, server: None)
    role.handle(Load(1, 1, "start"))
    for lease in (1, 2):
        role.handle(Give(1, 3, lease, gradient(lease, 2)))
    role.handle(Tell(1, Order(1, ApplyStep(1, ((1, 1.0),)))))
    role.out.clear()
    return role


def pull_of(extrapolation: Extrapolation) -> Pull:
    """What a worker sends to a shard for such work."""
    replicas = Exchanger(0, whole_server(1), layout_of(1), time.monotonic)
    worker = WorkerRole(0, 1, lambda: 1, lambda begin, epoch: [wanted((ids_of(0, 2),))], replicas)
    worker.handle(Welcome(1, 1))
    worker.handle(Assignment(1, 1, 1, Begin(0, Lease(7, 0, 2), 3, 1, extrapolation)))
    (pull,) = [message for _, message in worker.out if isinstance(message, Pull)]
    return pull


def answer(role: ShardRole, pull: Pull) -> torch.Tensor:
    role.handle(pull)
    (rows,) = [message for _, message in role.out if isinstance(message, Rows)]
    role.out.clear()
    assert isinstance(rows.dense, DenseValues)
    return rows.dense.flat


def test_the_worker_asks_for_the_prediction_of_its_work() -> None:
    assert pull_of(STORED).extrapolation == STORED
    assert pull_of(Extrapolation(2, 0.25)).extrapolation == Extrapolation(2, 0.25)


def test_the_shard_answers_with_the_weights_after_the_step_that_waits() -> None:
    role = shard_after_a_step()
    assert role.shard is not None
    stored, before = answer(role, pull_of(STORED)), role.shard.server.flat.clone()
    predicted = answer(role, pull_of(Extrapolation(1, 1.0)))
    assert torch.equal(stored, before) and torch.equal(role.shard.server.flat, before)
    role.handle(Tell(1, Order(2, ApplyStep(2, ((2, 1.0),)))))
    assert torch.allclose(predicted, role.shard.server.flat, rtol=0, atol=1e-6)
    assert not torch.allclose(predicted, before, rtol=0, atol=1e-3)
    role.out.clear()
    assert torch.equal(answer(role, pull_of(Extrapolation(1, 1.0))), role.shard.server.flat), "it is there"
