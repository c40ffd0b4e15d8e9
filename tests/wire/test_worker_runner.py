"""What a worker says of its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue

from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.engine.protocol.messages import (
    Assignment,
    DenseValues,
    LeaseDone,
    Report,
    Rows,
    Taken,
    Welcome,
)
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.worker import WorkerRole
from gearshift.engine.wire.driver import Computed, WorkerRunner
from gearshift.sync.events import Begin, Lease
from tests.protocol.world import gradient, ids_of, layout_of, summed, whole_server
from tests.shard_ids import wanted


def test_waiting_for_others_in_a_ring_is_not_counted() -> None:
    """Else all would look as slow as the slowest, and `strategy: auto` would see no straggler."""
    posted = SimpleQueue[Callable[[], None]]()
    replicas = Exchanger(0, whole_server(1), layout_of(1), time.monotonic)
    role = WorkerRole(0, 1, lambda: 1, lambda begin, epoch: [wanted((ids_of(0, 2),))], replicas)
    push = summed(gradient(0, 2), None, 4)
    runner = WorkerRunner(role, lambda job: Computed([push], None, waited=1000.0), posted.put, 300.0)
    runner.handle(Welcome(1, 1))
    runner.handle(Assignment(1, 1, 1, Begin(0, Lease(7, 0, 2), 0, 0), place=GroupRank(4, 0, 2)))
    runner.handle(Rows(1, 0, 1, 1, 0, (), DenseValues(gradient(0, 2).dense)))
    posted.get(timeout=30)()
    runner.handle(Taken(1, 0, 7))
    runner.close()
    (done,) = [said.outcome for _, said in role.out if isinstance(said, Report) and said.outcome]
    assert isinstance(done, LeaseDone) and (done.lease, done.group) == (7, 4) and done.seconds < -900.0
