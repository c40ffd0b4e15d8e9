"""What strategies promise, on every engine: the same step as one large batch, and as the float64 oracle."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

import numpy as np
import pytest
import torch
from oracle import WARM, Oracle, Rule
from torch import nn

import gearshift as gs
from examples import PLAIN
from gearshift.engine.epoch import Epoch
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.server import RowSettings
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.registry import make_strategy, resolve
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker
from tests.on_ray.fixtures import ON_RAY

from .engines import ENGINES, GLOBAL, data, learner, state

RULES = (Rule("sgd", 0.1), Rule("sgd", 0.5))  # of dense parameters and rows, as `learner()` has them
STALENESS = {
    "predicted_pull": True,
    "staleness_rate": True,
    "late_rows": "unchanged",
}  # what gba can do about it
EXAMPLES = 10 * GLOBAL + 35  # the last step is a short one
on_every_engine = pytest.mark.parametrize(
    "train", [*ENGINES, pytest.param("ray", marks=[ON_RAY, pytest.mark.slow])], indirect=True
)
in_one_process = pytest.mark.parametrize("train", list(ENGINES), indirect=True)


def assert_equals_oracle(on: Learner, oracle: Oracle, tolerance: float = 2e-6) -> None:
    (store,) = on.server.stores
    ids = np.array(sorted(oracle.rows), np.int64)
    assert len(store) == len(ids)
    rows = torch.stack([oracle.rows[i] for i in ids.tolist()]).numpy()
    np.testing.assert_allclose(store.peek(ids), rows, rtol=2e-4, atol=tolerance)
    for mine, theirs in zip(on.model.parameters(), oracle.model.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=tolerance)


def oracle_after(on: Learner, examples: gs.Dataset, batch: int, rules: tuple[Rule, Rule] = RULES) -> Oracle:
    oracle = Oracle.from_learner(on, *rules)
    for one in examples.batches(batch):
        oracle.step(one)
    return oracle


# ---- sync: many workers, one worker, the oracle ----


@on_every_engine
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("strategy", ["sync", "balanced"])
def test_sync_equals_one_large_batch_and_the_oracle(train, strategy: str, workers: int) -> None:
    oracle = oracle_after(learner(), data(EXAMPLES), GLOBAL)
    on = learner()
    counted = train(on, data(EXAMPLES), strategy, workers)
    assert (counted.steps, counted.examples, counted.staleness) == (11, EXAMPLES, 0)
    assert_equals_oracle(on, oracle)


WARM_RULES = {
    "adagrad": (gs.Adagrad(lr=0.05, initial=WARM), gs.RowAdagrad(lr=0.05, initial=WARM), 1e-10, 1e-8),
    "adam": (gs.Adam(lr=0.01), gs.RowAdam(lr=0.01), 1e-8, 1e-8),
}


def warm(kind: str) -> Learner:
    """Ten steps on: where no accumulator is so small that rounding decides the step."""
    dense, rows, _, _ = WARM_RULES[kind]
    on = learner((dense, rows))
    for batch in data(10 * GLOBAL, seed=7).batches(GLOBAL):
        on.step(on.find(batch))
    return on


@on_every_engine
@pytest.mark.parametrize("kind", WARM_RULES)
@pytest.mark.parametrize(
    ("strategy", "workers", "settings"),
    [
        ("sync", 4, {}),
        ("sync", 1, {}),
        ("balanced", 4, {}),
        ("gba", 1, {"batch": 20}),
        ("buffered_async", 1, {"batch": 20}),
    ],
)
def test_one_step_from_a_warm_state_equals_the_oracle(
    train, kind: str, strategy: str, workers: int, settings: dict
) -> None:
    dense, rows, dense_eps, row_eps = WARM_RULES[kind]
    rules = Rule(kind, dense.lr, dense_eps), Rule(kind, rows.lr, row_eps)
    on = warm(kind)
    before = state(on.server)["weights_UW"]
    oracle = oracle_after(on, data(GLOBAL), GLOBAL, rules)
    assert train(on, data(GLOBAL), strategy, workers, **settings).steps == 1
    assert_equals_oracle(on, oracle)
    assert (
        np.abs(state(on.server)["weights_UW"] - before).max() > 1e-3
    )  # it moved by much more than the tolerance


# ---- one worker: each strategy is the oracle with its own batch ----


@on_every_engine
@pytest.mark.parametrize(
    ("strategy", "settings", "batch"),
    [
        ("sync", {"batch": 20}, GLOBAL),
        ("balanced", {"batch": 20}, GLOBAL),
        ("gba", {"batch": 20}, GLOBAL),  # accumulation over M = 4
        ("gba", {"batch": 20, "max_lag": 0}, GLOBAL),
        ("gba", {"batch": 20, **STALENESS}, GLOBAL),
        ("buffered_async", {"batch": 20}, GLOBAL),
        ("buffered_async", {"batch": 20, "gradients_per_step": 2}, 40),
        ("backup_workers", {"batch": 20, "backups": 0}, GLOBAL),
        ("async", {"batch": 20}, 20),
        ("bounded_staleness", {"batch": 20}, 20),
        ("ringmaster", {"batch": 20, "max_staleness": 0}, 20),
        ("bounded_staleness", {"batch": 20, "bound": 0}, 20),
    ],
)
def test_one_worker_equals_the_oracle(train, strategy: str, settings: dict, batch: int) -> None:
    oracle = oracle_after(learner(), data(EXAMPLES), batch)
    on = learner()
    counted = train(on, data(EXAMPLES), strategy, 1, **settings)
    assert (counted.steps, counted.discarded, counted.staleness) == (-(-EXAMPLES // batch), 0, 0)
    assert_equals_oracle(on, oracle)


# ---- gba beside sync ----


class _Host:
    def horizons(self, step: int) -> None:
        return None

    def rate(self, examples: int) -> float:
        return 1.0

    def ended(self, leases) -> None: ...

    def stepped(self) -> bool:
        return True


def in_lockstep(strategy: str, workers: int, **settings) -> Learner:
    """Each step's pulls follow the step before: all gradients arrive, and then all workers ask."""
    on = learner((gs.Adam(), gs.RowAdam()))
    coordinator = Coordinator(resolve(strategy, settings, GLOBAL, workers), make_strategy)
    shards, begun = LocalShards(on.server, on.layout), deque()
    epoch = Epoch(coordinator, shards, _Host(), begun.append)
    copies = [on.model_copy() for _ in range(workers)]
    batches = data(6 * GLOBAL).batches(GLOBAL // workers)
    for worker in range(workers):
        epoch.joined(worker)
    while parts := list(islice(batches, workers)):
        found = {batch.first: on.find(batch) for batch in parts}
        for batch in parts:
            epoch.supply(batch.first, len(batch))
        for worker in range(workers):
            epoch.requested(worker)
        assert len(begun) == workers
        while begun:
            begin = begun.pop()  # whoever is first
            predicted = shards.extrapolate(begin)
            push = copies[begin.worker].compute(found[begin.lease.first], begin.lease.first, None, predicted)
            shards.push(begin.lease.number, push)
            epoch.arrived(begin.worker, begin.lease.number, push)
            shards.keep(begin.lease.number)
    assert on.server.step == 6
    return on


@pytest.mark.parametrize("settings", [{}, STALENESS], ids=["usual", "staleness"])
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_gba_equals_sync_bit_for_bit_where_pulls_follow_the_step_before(workers: int, settings: dict) -> None:
    assert_same_bits(in_lockstep("sync", workers), in_lockstep("gba", workers, **settings))


@pytest.mark.parametrize("workers", [1, 4, 8])
def test_balanced_equals_sync_bit_for_bit_where_leases_are_equal(workers: int) -> None:
    assert_same_bits(
        in_lockstep("sync", workers), in_lockstep("balanced", workers, smallest=GLOBAL // workers)
    )


def assert_same_bits(one: Learner, other: Learner) -> None:
    expected, got = state(one.server), state(other.server)
    assert expected.keys() == got.keys()
    for name, values in expected.items():
        assert np.array_equal(values, got[name]), name


def expected_staleness(workers: int, per_step: int, leases: int) -> float:
    """Exact, whoever is first: a lease begins after each arrival while data last, and each arrival is one's end.

    Far from both ends of the data it is (workers - 1) / per_step.
    """
    begun_at = sum(arrived // per_step for arrived in range(1, leases - workers + 1))
    applied_before = sum((arrival - 1) // per_step for arrival in range(1, leases + 1))
    return (applied_before - begun_at) / leases


@on_every_engine
@pytest.mark.parametrize(("workers", "per_step"), [(2, 4), (4, 4), (4, 8)])
def test_free_gba_is_stale_by_workers_less_one_over_gradients_per_step(
    train, workers: int, per_step: int
) -> None:
    steps = 50
    counted = train(
        learner(), data(steps * GLOBAL), "gba", workers, batch=GLOBAL // per_step, max_lag=float("inf")
    )
    expected = expected_staleness(workers, per_step, steps * per_step)
    assert expected == pytest.approx((workers - 1) / per_step, rel=0.1)
    if train is ENGINES["virtual time"]:
        assert counted.staleness == pytest.approx(expected)
    else:  # a thread may wake late, and then it pulls what is newer than it had to be
        assert 0 < counted.staleness <= expected + 1e-9


class Even(nn.Module):
    """Workers of even speed, on threads: nobody ends a batch before all have begun theirs."""

    dim = 4
    together: threading.Barrier

    def __init__(self) -> None:
        super().__init__()
        self.net = gs.models.DNN(PLAIN, dim=4, hidden=[4])

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        if threading.current_thread().name.startswith("gearshift-worker"):
            Even.together.wait(60)
        return self.net(x)


@in_one_process
@pytest.mark.parametrize(("workers", "per_step"), [(2, 4), (4, 4)])
def test_free_gba_discards_nothing_while_speeds_are_even(train, workers: int, per_step: int) -> None:
    Even.together = threading.Barrier(workers)
    on = Learner(Worker(Even(), PLAIN), rows=RowSettings(gs.RowSGD()), optimizer=gs.SGD())
    counted = train(on, data(40 * GLOBAL), "gba", workers, batch=GLOBAL // per_step, max_lag=1)
    assert (counted.steps, counted.discarded) == (40, 0)
