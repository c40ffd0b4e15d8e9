"""A shard executes orders in sequence, each once, and refuses gradients of ended leases; several shards equal one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.server import RowSettings
from gearshift.parameters.shard import ApplyStep, Drop, Order, Shard, ShardLayout, TakeCut
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker


def learner(shards: int = 1, **more) -> Learner:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    rows = RowSettings(gs.RowAdagrad(lr=0.1))
    return Learner(Worker(model, PLAIN), rows=rows, optimizer=gs.Adam(), shards=shards, **more)


def pushes(on: Learner, count: int):
    return [on.compute(on.find(make_batch(PLAIN, 20, seed)), seed).kept() for seed in range(count)]


@given(orders=st.permutations(list(range(1, 7)) * 2))
def test_orders_are_carried_out_in_order_and_once(orders: list[int]) -> None:
    on = learner()
    shard = Shard(on.server)
    for lease, push in enumerate(pushes(on, 4)):
        assert shard.take(lease, push)
    received = {
        1: ApplyStep(1, ((0, 1.0),)),
        2: Drop(2),
        3: ApplyStep(2, ((3, 0.5), (1, 1.0)), over_kept=True),
        4: Drop(9),
        5: Drop(4),
        6: Drop(5),
    }
    steps = []
    for number in orders:
        before = shard.step
        shard.receive(Order(number, received[number]))
        assert shard.step >= before
        steps.append(shard.step)
    assert shard.done == 6 and steps[-1] == 2 and not shard.waiting
    expected = learner()
    first, second, _, last = pushes(expected, 4)
    expected.server.apply_group([(first, 1.0)], lr_scale=1.0)
    expected.server.apply_group([(last, 0.5), (second, 1.0)], lr_scale=1.0, over_kept=True)
    assert torch.equal(on.server.flat, expected.server.flat)


def test_a_gradient_of_an_ended_lease_is_refused_and_forgotten() -> None:
    on = learner()
    shard, (push, *_) = Shard(on.server), pushes(on, 1)
    assert shard.take(3, push) and shard.take(3, push)
    shard.receive(Order(1, ApplyStep(1, ((3, 1.0),)), open_from=2))
    assert not shard.take(3, push), "it was applied"
    assert not shard.take(1, push), "nobody works on it any more"
    assert shard.take(2, push)
    shard.receive(Order(2, Drop(7), open_from=5))
    assert not shard.waiting, "what nobody will name any more is not kept"
    assert not shard.take(7, push) and shard.take(8, push)


def test_a_cut_falls_in_its_turn_and_a_step_out_of_order_is_a_fault() -> None:
    cuts: list[str] = []
    shard = Shard(learner().server, cuts.append)
    shard.receive(Order(2, TakeCut("a")))
    assert cuts == []
    shard.receive(Order(1, Drop(0)))
    assert cuts == ["a"]
    with pytest.raises(AssertionError, match="step 2 after step 0"):
        shard.receive(Order(3, ApplyStep(2, ())))


@pytest.mark.parametrize("shards", [2, 3, 5])
@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_shards_together_equal_one(shards: int, max_norm: float | None) -> None:
    clipped = DensePolicy(clip_norm=max_norm)
    one, many = learner(dense=clipped), learner(shards, dense=clipped)
    single, several = LocalShards(one.server, one.layout), LocalShards(many.server, many.layout)
    try:
        for step in range(1, 6):
            for on, where in ((one, single), (many, several)):
                for lease in (2 * step, 2 * step + 1):
                    push = on.compute(on.find(make_batch(PLAIN, 20, lease)), lease)
                    where.push(lease, push.kept())
                where.carry_out(ApplyStep(step, ((2 * step, 1.0), (2 * step + 1, 0.5))), 2 * step)
    finally:
        several.close()
    assert one.server.step == many.server.step == 5
    assert torch.equal(one.server.flat, many.server.flat)
    for name, values in one.server.optimizer_state.items():
        assert torch.equal(values, many.server.optimizer_state[name]), name
    for mine, theirs in zip(one.server.stores[0].blocks(), many.server.stores[0].blocks(), strict=True):
        assert np.array_equal(mine.ids_U, theirs.ids_U)
        assert np.array_equal(mine.weights_UW, theirs.weights_UW)
        assert np.array_equal(mine.state_US, theirs.state_US)


@given(
    shards=st.integers(1, 256),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    together=st.booleans(),
)
def test_a_layout_covers_every_tensor_once_and_whole(shards: int, sizes: list[int], together: bool) -> None:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    layout = ShardLayout.of(shards, sum(sizes), tuple(starts), together)
    assert layout.shards == shards
    bounds = [(s.start, s.stop) for s in layout.dense]
    assert bounds[0][0] == 0 and bounds[-1][1] == sum(sizes)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(start in {*starts, sum(sizes)} for start, _ in bounds)
    assert not together or bounds[0] == (0, sum(sizes))
