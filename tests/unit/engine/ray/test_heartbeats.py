"""Who is late, and how often a member may restart: by progress, whatever a start takes."""

from __future__ import annotations

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.heartbeats import DEATHS, Heartbeats, RestartBudget

SHARD, WORKER = To("shard", 1), To("worker", 0)


def looks(beats: Heartbeats, first: int, last: int) -> dict[int, list[tuple[To, bool]]]:
    """Every second; what was found, by time."""
    found = {now: [(late.who, late.overdue) for late in beats.look(now)] for now in range(first, last)}
    return {now: late for now, late in found.items() if late}


def test_a_silent_member_is_announced_and_then_overdue_once_per_patience() -> None:
    beats = Heartbeats(30)
    beats.heard(SHARD, 0)
    beats.heard(WORKER, 0)
    assert looks(beats, 0, 10) == {}
    beats.heard(WORKER, 9)
    assert looks(beats, 10, 35) == {12: [(SHARD, False)], 21: [(WORKER, False)], 30: [(SHARD, True)]}
    beats.heard(WORKER, 35)
    assert looks(beats, 35, 62) == {42: [(SHARD, False)], 47: [(WORKER, False)], 60: [(SHARD, True)]}
    beats.forget(SHARD)
    beats.forget(WORKER)
    assert looks(beats, 62, 200) == {}


def test_our_own_sleep_does_not_count() -> None:
    beats = Heartbeats(30)
    beats.heard(SHARD, 0)
    assert looks(beats, 0, 11) == {}
    assert looks(beats, 500, 522) == {502: [(SHARD, False)], 520: [(SHARD, True)]}


def test_one_that_makes_no_progress_uses_up_its_restarts_however_long_a_start_takes() -> None:
    budget = RestartBudget()
    assert [budget.started(WORKER) for _ in range(DEATHS + 1)] == list(range(DEATHS + 1))


def test_restarts_are_further_and_further_apart() -> None:
    budget = RestartBudget()
    delays = []
    for _ in range(DEATHS + 1):
        budget.started(WORKER)
        delays.append(budget.delay(WORKER))
    assert delays == [0, 0, 1, 2, 4, 8, 16, 30, 30]


def test_progress_gives_all_restarts_back() -> None:
    budget = RestartBudget()
    budget.started(SHARD)
    budget.alive(SHARD, works=True, step=10)
    assert budget.started(SHARD) == 0
    budget.alive(SHARD, works=True, step=10)  # the run is where it was
    assert budget.started(SHARD) == 1
    budget.alive(SHARD, works=True, step=4)  # the run went back to a checkpoint
    assert budget.started(SHARD) == 2
    budget.alive(SHARD, works=True, step=11)
    assert budget.started(SHARD) == 0


def test_a_worker_must_have_worked_itself() -> None:
    budget = RestartBudget()
    budget.started(WORKER)
    for step, restarts in ((1, 1), (2, 2)):
        budget.alive(WORKER, works=False, step=step)
        assert budget.started(WORKER) == restarts


def test_failures_are_counted_by_progress_too() -> None:
    budget = RestartBudget()
    for times in (1, 2):
        budget.started(WORKER)
        assert budget.failed(WORKER) == times
    budget.started(WORKER)
    budget.alive(WORKER, works=True, step=5)
    assert budget.failed(WORKER) == 1
    budget.started(WORKER)
    assert budget.failed(WORKER) == 2
