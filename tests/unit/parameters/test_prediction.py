"""Predicted pulls, the dense rate of a step, and late gradients that count for unchanged rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.prediction import WaitingGradients
from gearshift.parameters.push import Push
from gearshift.parameters.server import RowSettings
from gearshift.parameters.shard import ApplyStep, Order, Shard
from gearshift.sync.events import Begin, Extrapolation, Lease
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker


def learner(shards: int = 1, rule=None, rows=None, **more) -> Learner:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    settings = RowSettings(rows or gs.RowAdagrad(lr=0.1))
    return Learner(Worker(model, PLAIN), rows=settings, optimizer=rule or gs.Adam(), shards=shards, **more)


def push_of(on: Learner, seed: int, examples: int = 20) -> Push:
    return on.compute(on.find(make_batch(PLAIN, examples, seed)), seed).kept()


def shard_after_steps(on: Learner, steps: int = 2) -> Shard:
    shard = Shard(on.server)
    for step in range(1, steps + 1):
        shard.take(step, push_of(on, step))
        shard.receive(Order(step, ApplyStep(step, ((step, 1.0),), 0.5)))
    return shard


def begin(version: int, steps: int, waiting: float = 0.0) -> Begin:
    return Begin(0, Lease(99, 0, 1), version + steps, version, Extrapolation(steps, waiting))


# ---- predictions ----


def test_a_step_whose_gradients_all_wait_is_predicted_bit_for_bit_and_changes_nothing() -> None:
    on = learner()
    shard = shard_after_steps(on)
    before, state = on.server.flat.clone(), {k: v.clone() for k, v in on.server.optimizer_state.items()}
    shard.take(7, push_of(on, 7, 20))
    predicted = shard.extrapolate(2, Extrapolation(1, 1.0))
    assert torch.equal(on.server.flat, before), "the parameters are the true ones"
    assert all(torch.equal(values, state[name]) for name, values in on.server.optimizer_state.items())
    shard.receive(Order(3, ApplyStep(3, ((7, 1.0),), 0.5)))
    assert torch.allclose(predicted, on.server.flat, rtol=0, atol=1e-7)
    assert not torch.allclose(predicted, before, rtol=0, atol=1e-5)


def test_what_waits_is_clipped_as_the_step_will_be() -> None:
    on = learner(rule=gs.SGD(lr=0.1), dense=DensePolicy(clip_norm=0.01))
    shard = shard_after_steps(on)
    shard.take(7, push_of(on, 7))
    predicted = shard.extrapolate(2, Extrapolation(1, 1.0))
    shard.receive(Order(3, ApplyStep(3, ((7, 1.0),), 0.5)))
    assert torch.allclose(predicted, on.server.flat, rtol=0, atol=1e-7)


def test_a_pull_is_extrapolated_only_as_far_as_it_asks_and_only_once_the_rate_is_known() -> None:
    on = learner()
    fresh = Shard(on.server)
    ids = (np.array([3], np.int64),)
    fresh.take(7, push_of(on, 7))
    assert torch.equal(fresh.extrapolate(0, Extrapolation(3, 0.5)), on.server.flat), "no step was made yet"
    shard = shard_after_steps(learner())
    stored = shard.server.flat
    assert torch.equal(shard.pull(ids)[1], stored)
    assert torch.equal(shard.pull(ids, version=1, extrapolation=Extrapolation(1))[1], stored), "it is there"
    one, two = (shard.pull(ids, version=2, extrapolation=Extrapolation(n))[1] for n in (1, 2))
    assert not torch.equal(one, stored) and not torch.equal(two, one)
    assert torch.equal(shard.pull(ids, version=1, extrapolation=Extrapolation(2))[1], one)
    assert len(shard.pull(ids, dense=False, version=2, extrapolation=Extrapolation(2))[1]) == 0


@pytest.mark.parametrize("shards", [2, 3, 5])
@pytest.mark.parametrize("rule", ["momentum", "adam", "lamb", "lars", "vr_adam"])
@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_shards_together_predict_what_one_does(shards: int, rule: str, max_norm: float | None) -> None:
    clipped = DensePolicy(clip_norm=max_norm)
    learners = [learner(n, gs.optim.build(rule, lr=0.01), dense=clipped) for n in (1, shards)]
    wheres = [LocalShards(on.server, on.layout) for on in learners]
    try:
        for of, where in zip(learners, wheres, strict=True):
            for step in (1, 2):
                where.push(step, push_of(of, step))
                where.carry_out(ApplyStep(step, ((step, 1.0),)), step)
            where.push(3, push_of(of, 3))
        one, many = (where.extrapolate(begin(2, 2, 0.5)) for where in wheres)
        assert one is not None and many is not None and torch.equal(one, many)
        assert not torch.equal(one, learners[0].server.flat)
        assert all(where.extrapolate(begin(2, 0)) is None for where in wheres)
    finally:
        wheres[1].close()


@given(arrivals=st.lists(st.tuples(st.sampled_from(["push", "ask", "take"]), st.integers(0, 9)), max_size=25))
def test_the_mean_of_what_waits_does_not_depend_on_what_was_asked_before(arrivals) -> None:
    asked, waiting = WaitingGradients(), dict[int, Push]()
    for lease, (what, number) in enumerate(arrivals):
        if what == "push":
            dense = torch.randn(3, generator=torch.Generator().manual_seed(lease))
            waiting[lease] = Push((), dense, 1.0 + number, 0.0, np.empty((0, 1), np.float32))
        elif what == "take" and waiting:
            del waiting[[*waiting][number % len(waiting)]]
        else:
            asked.mean(waiting)
    mine, fresh = asked.mean(waiting), WaitingGradients().mean(waiting)
    assert (mine is None) == (fresh is None) == (not waiting)
    assert mine is None or torch.equal(mine, fresh)


def test_the_rate_of_a_step_is_that_of_the_dense_parameters_alone() -> None:
    half, whole = learner(rule=gs.SGD(lr=0.05)), learner(rule=gs.SGD(lr=0.1))
    push = push_of(whole, 1)
    half.server.apply_group([(push, 1.0)], lr_scale=1.0)
    whole.server.apply_group([(push, 1.0)], lr_scale=1.0, dense_rate=0.5)
    assert torch.equal(half.server.flat, whole.server.flat)
    assert np.array_equal(rows(half), rows(whole))


# ---- late gradients ----


def rows(on: Learner) -> np.ndarray:
    return np.concatenate([block.weights_UW for block in on.server.stores[0].blocks()])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("over_kept", [False, True])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_late_gradient_counts_for_rows_that_nobody_has_changed(
    shards: int, over_kept: bool, weight: float
) -> None:
    """Step 1 is seen by the late one, step 2 is not; in step 3 it comes with another, or alone."""
    on, by_hand = learner(shards, rows=gs.RowSGD(lr=0.1)), learner(shards, rows=gs.RowSGD(lr=0.1))
    first, second, late, timely = (push_of(on, seed) for seed in (1, 2, 3, 4))
    for one in (on, by_hand):
        for push in (first, second):
            one.server.apply_group([(push, 1.0)], lr_scale=1.0)
    dense = on.server.flat.clone()
    parts = [(late, 0.0), (timely, weight)]
    on.server.apply_group(parts, lr_scale=1.0, over_kept=over_kept, late=[(late, 1)])
    untouched = np.setdiff1d(late.rows[0].ids_U, second.rows[0].ids_U)
    assert 0 < len(untouched) < len(late.rows[0].ids_U)
    by_hand.server.apply_group(parts, lr_scale=1.0, over_kept=over_kept)
    ids_U = np.concatenate([late.rows[0].ids_U, timely.rows[0].ids_U])
    ids_U = np.unique(ids_U)
    moved = (on.server.stores[0].peek(ids_U) != by_hand.server.stores[0].peek(ids_U)).any(axis=1)
    assert set(ids_U[moved]) == set(untouched)
    assert torch.equal(on.server.flat, by_hand.server.flat)
    assert torch.equal(on.server.flat, dense) == (weight == 0.0)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_store_knows_the_last_step_of_each_row(shards: int) -> None:
    store = learner(shards).server.stores[0]
    width = store.width
    ids_U = np.array([3, 5, 8], np.int64)
    store.pull(ids_U)
    assert store.last_steps(ids_U).tolist() == [0, 0, 0]
    for step, some in ((4, [3, 5]), (9, [5])):
        some_U = np.array(some, np.int64)
        store.push(
            some_U,
            np.ones((len(some), width), np.float32),
            np.ones(len(some), np.uint32),
            examples=1.0,
            step=step,
        )
    assert store.last_steps(np.array([8, 5, 3, 77], np.int64)).tolist() == [0, 9, 4, 0]
