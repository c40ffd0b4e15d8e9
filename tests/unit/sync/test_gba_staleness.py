"""gba's settings for staleness: predicted pulls, the rate of a stale step, late rows; and what sync adopts."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift.sync.events import STORED, Apply, Begin
from gearshift.sync.global_batch import GlobalBatch
from tests.unit.sync.ledger import World

ALL = {"predicted_pull": True, "staleness_rate": True, "late_rows": "unchanged"}


class Run(World):
    """Workers of one batch after the other; all that was begun and applied."""

    def __init__(self, workers: int, m: int, **settings) -> None:
        super().__init__("gba", {"global_batch": m, "batch": 1, **settings})
        self.begun: list[Begin] = []
        self.applied: list[Apply] = []
        for _ in range(workers):
            self.join()
        self.supply(100_000, 1)
        for worker in range(workers):
            self.ask(worker)

    def handle(self, event):
        actions = super().handle(event)
        self.begun += [action for action in actions if isinstance(action, Begin)]
        self.applied += [action for action in actions if isinstance(action, Apply)]
        return actions

    def deliver(self, *workers: int) -> None:
        for worker in workers:
            self.arrive(worker, *self.work.flights_of[worker])
            self.ask(worker)


orders = st.lists(st.integers(0, 4), max_size=60)


@given(order=orders, m=st.integers(1, 6))
def test_a_pull_is_predicted_to_its_token_from_what_waits(order: list[int], m: int) -> None:
    run = Run(5, m, **ALL)
    for worker in order:
        before = len(run.begun)
        run.deliver(worker)
        (begin,) = run.begun[before:]
        waiting = len(run.work.waiting) / m
        steps = begin.token - begin.version
        expected = waiting if steps else 0.0
        assert begin.extrapolation.steps == steps
        assert begin.extrapolation.waiting == pytest.approx(expected, abs=1e-4)


@given(order=orders, m=st.integers(1, 6))
def test_the_rate_of_a_step_is_one_by_one_plus_its_mean_staleness(order: list[int], m: int) -> None:
    run = Run(5, m, **ALL)
    run.deliver(*order)
    for step in run.applied:
        kept = [part.staleness for part in step.parts if part.weight]
        assert step.dense_rate == pytest.approx(1 / (1 + mean(kept)) if kept else 1.0, abs=1e-4)


@given(order=orders, m=st.integers(1, 6))
def test_the_settings_change_nothing_else_and_nothing_where_they_are_off(order: list[int], m: int) -> None:
    """The same leases, tokens, versions, steps and weights."""
    off = {"predicted_pull": False, "staleness_rate": False, "late_rows": "drop"}
    plain, all_of_it = Run(5, m, **off), Run(5, m, **ALL)
    for run in (plain, all_of_it):
        run.deliver(*order)
    assert all(begin.extrapolation == STORED for begin in plain.begun)
    assert all(step.dense_rate == 1.0 for step in plain.applied)
    shown = [[(b.lease, b.token, b.version) for b in run.begun] for run in (plain, all_of_it)]
    assert shown[0] == shown[1]
    weights = [
        [[(p.lease, p.weight, p.lag) for p in step.parts] for step in run.applied]
        for run in (plain, all_of_it)
    ]
    assert weights[0] == weights[1]


def test_with_one_worker_nothing_is_predicted_and_no_rate_is_lowered() -> None:
    run = Run(1, 4, **ALL)
    run.deliver(*[0] * 20)
    assert len(run.applied) == 5
    assert all(begin.extrapolation == STORED for begin in run.begun)
    assert all(step.dense_rate == 1.0 for step in run.applied)


def test_examples_count_in_the_mean_staleness_and_dropped_ones_do_not() -> None:
    run = Run(3, 2, max_lag=1, staleness_rate=True)
    run.deliver(*[0, 1] * 6)
    run.deliver(2, 0)
    step = run.applied[-1]
    late = next(part for part in step.parts if not part.weight)
    kept = next(part for part in step.parts if part.weight)
    assert late.staleness > kept.staleness
    assert step.dense_rate == pytest.approx(1 / (1 + kept.staleness), abs=1e-4)


@pytest.mark.parametrize(("late_rows", "count"), [("drop", False), ("unchanged", True)])
def test_a_late_gradient_may_count_for_rows_and_the_log_says_so(late_rows: str, count: bool) -> None:
    run = Run(3, 2, max_lag=1, late_rows=late_rows)
    run.deliver(*[0, 1] * 6)
    run.deliver(2, 0)
    (late,) = [part for part in run.applied[-1].parts if not part.weight]
    assert late.unchanged_rows is count and ("rows that nobody" in late.reason) is count
    assert late.reason.startswith("too late: ")
    assert not any(part.unchanged_rows for step in run.applied for part in step.parts if part.weight)


def test_every_lag_up_to_max_lag_counts_in_full_whatever_the_decay() -> None:
    for decay in ("cut", "exponential", "inverse"):
        made = GlobalBatch(8, 1, decay=decay)
        assert [made.weight(lag, 4) for lag in range(-2, 5)] == [1.0] * 7
        assert made.weight(5, 4) < 1.0


# ---- what sync adopts ----


def after_a_switch(strategy: str, turns: int, **settings) -> World:
    """Worker 2 is at its first lease all the while; then sync takes over, and it arrives."""
    run = World(strategy, {"global_batch": 4, "batch": 1, **settings})
    for _ in range(5):
        run.join()
    run.supply(1000, 1)
    for worker in range(5):
        run.ask(worker)
    for turn in range(turns):
        worker = (0, 1, 3, 4)[turn % 4]
        run.arrive(worker, *run.work.flights_of[worker])
        run.ask(worker)
    run.switch("sync", {"global_batch": 4, "batch": 1})
    for worker in (0, 1, 3, 4, 2):
        run.arrive(worker, *run.work.flights_of[worker])
        run.ask(worker)
    for _ in range(12):
        worker = next(iter(run.work.flying.values())).worker
        run.arrive(worker, *run.work.flights_of[worker])
        run.ask(worker)
    return run


@pytest.mark.parametrize(("turns", "dropped"), [(0, False), (8, False), (12, False), (40, True)])
def test_sync_leaves_out_a_straggler_that_gba_would_have_dropped(turns: int, dropped: bool) -> None:
    run = after_a_switch("gba", turns)
    (late,) = [part for part in run.parts if part.lease == 2]
    assert (late.weight == 0.0) is dropped
    assert late.reason.startswith("too late: begun before the switch, " if dropped else "")
    assert all(part.weight == 1.0 for part in run.parts[-8:] if part.lease != 2)


def test_what_is_begun_in_sync_is_never_left_out_and_async_counts_in_its_own_steps() -> None:
    """async makes a step of every gradient: a usual one is as many steps stale as there are other workers."""
    run = after_a_switch("async", 6)
    assert all(part.weight == 1.0 for part in run.parts)
    slow = after_a_switch("async", 60)
    (late,) = [part for part in slow.parts if part.lease == 2]
    assert late.weight == 0.0 and late.staleness > 10


def test_a_step_with_a_straggler_left_out_is_the_mean_of_the_others() -> None:
    run = after_a_switch("gba", 40)
    step = next(
        action
        for actions in run.answers
        for action in actions
        if isinstance(action, Apply) and any(part.lease == 2 for part in action.parts)
    )
    assert step.over_kept and step.dense_rate == 1.0
