"""A worker's dense state beside the shards': the same bits after every step on a ring's sum."""

from __future__ import annotations

import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.engine.protocol.messages import DenseValues, Load, Pull, Rows, Tell
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.ray.dense_copy import DenseCopy, state_of, wants_spread, why_not_copied
from gearshift.engine.wire.limits import StatePart
from gearshift.optim import DenseLAMB, DenseLARS, SharedSums, build
from gearshift.optim.first_order import SGD, Adagrad, AdamW, DenseOptimizer
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.push import GroupRowsPush, GroupSumPush, Push, ShardPush
from gearshift.parameters.server import RowSettings
from gearshift.parameters.shard import ApplyStep, HeldDense, Order, StepOnSum, shard_server
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker
from tests.shard_ids import split_ids

WORKERS = 3


def learner(optimizer: DenseOptimizer, max_norm: float | None = None, shards: int = 1) -> Learner:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    rows = RowSettings(gs.RowAdagrad(lr=0.1))
    return Learner(
        Worker(model, PLAIN),
        rows=rows,
        optimizer=optimizer,
        dense=DensePolicy(clip_norm=max_norm),
        shards=shards,
    )


def a_round(on: Learner, group: int, seed: int) -> list[ShardPush]:
    """Of a group: the first carries the sum of all."""
    pushes = [on.compute(on.find(make_batch(PLAIN, 20, seed + i)), i).kept() for i in range(WORKERS)]
    total = torch.stack([push.dense for push in pushes]).sum(0)
    return in_group(pushes, group, total, None)


def in_group(
    pushes: list[Push], group: int, total: torch.Tensor, variance: torch.Tensor | None
) -> list[ShardPush]:
    first, *others = pushes
    carried = GroupSumPush(group, first.rows, total, variance, first.examples)
    return [carried, *(GroupRowsPush(group, push.rows, push.examples) for push in others)]


class Spreads:
    """Of a ring whose members find the variance of their gradients with the sum."""

    def __init__(self, on: Learner) -> None:
        self._sums = [SharedSums(len(on.server.flat)) for _ in range(WORKERS)]
        self._first = True

    def summed(self, pushes: list[Push], group: int) -> list[ShardPush]:
        if self._first:
            shifts = [
                s.propose(pushes[0].dense, pushes[0].examples * (s is self._sums[0])) for s in self._sums
            ]
            all_reduce(shifts)
        self._first = False
        for own, push in zip(self._sums, pushes, strict=True):
            own.restart()
            own.add(push.dense, push.examples)
        all_reduce([own.packed for own in self._sums])
        for own in self._sums:
            own.settle(WORKERS)
        total, variance = self._sums[1].total.clone(), self._sums[2].variance.clone()
        return in_group(pushes, group, total, variance)


def all_reduce(vectors: list[torch.Tensor]) -> None:
    total = torch.stack(vectors).sum(0)
    for vector in vectors:
        vector.copy_(total)


class Cluster:
    """Shards, and one worker that mirrors them."""

    def __init__(self, optimizer: DenseOptimizer, max_norm: float | None, shards: int) -> None:
        self.truth = learner(optimizer, max_norm, shards)
        self.layout = self.truth.layout
        self.shards = [
            ShardRole(
                s,
                1,
                lambda name, done, s=s: done(shard_server(self.truth.server, self.layout, s)),
                lambda name, server: None,
            )
            for s in range(shards)
        ]
        for shard in self.shards:
            shard.handle(Load(1, 1, "start"))
        self.own = learner(optimizer, max_norm, shards)
        self.dense_copy = DenseCopy(self.own.server, self.layout)
        self._orders = self._pulls = 0

    def step(self, pushes: list[ShardPush], lr_scale: float) -> None:
        self._orders += 1
        first = self._orders * WORKERS
        for i, push in enumerate(pushes):
            for shard, part in zip(self.shards, self.layout.split(push), strict=True):
                assert shard.shard is not None and shard.shard.take(first + i, part)
        parts = tuple((first + i, 1.0) for i in range(len(pushes)))
        for shard in self.shards:
            shard.handle(Tell(1, Order(self._orders, ApplyStep(self._orders, parts, lr_scale))))

    def pull(self, held: HeldDense | None) -> list[Rows]:
        self._pulls += 1
        ids = split_ids(self.layout.shards, self.truth.find(make_batch(PLAIN, 5, 0)).ids)
        answers = []
        for shard, own in zip(self.shards, ids, strict=True):
            shard.out.clear()
            shard.handle(Pull(1, 0, 1, self._pulls, 0, *own, held=held))
            answers += [message for _, message in shard.out if isinstance(message, Rows)]
        return answers

    def assert_same(self) -> None:
        assert torch.equal(self.own.server.flat, self.truth.server.flat)
        for name, values in self.truth.server.optimizer_state.items():
            assert torch.equal(self.own.server.optimizer_state[name], values), name


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("optimizer", "max_norm"),
    [
        (SGD(0.1, l2=0.01), None),
        (gs.Adam(0.01), None),
        (gs.Adam(0.01), 0.05),
        (AdamW(0.01), None),
        (Adagrad(0.05), None),
        (DenseLAMB(0.01), None),
        (DenseLARS(0.1), None),
    ],
    ids=str,
)
def test_a_mirror_makes_the_steps_of_the_shards(
    optimizer: DenseOptimizer, max_norm: float | None, shards: int
) -> None:
    cluster = Cluster(optimizer, max_norm, shards)
    cluster.step(a_round(cluster.truth, 1, 0), 0.7)
    cluster.dense_copy.take(cluster.pull(HeldDense()), None)  # it holds nothing: it is brought everything
    cluster.assert_same()
    for step in range(1, 5):
        pushes = a_round(cluster.truth, 2, 10 * step)
        before = cluster.own.server.flat.clone()
        cluster.step(pushes, 1.0 + step / 7)
        answers = cluster.pull(HeldDense(step, 2))
        assert all(isinstance(answer.dense, StepOnSum) and answer.dense.group == 2 for answer in answers)
        cluster.dense_copy.take(answers, pushes[0].dense)
        cluster.assert_same()
        assert not torch.equal(before, cluster.own.server.flat)
    assert all(answer.dense == StepOnSum() for answer in cluster.pull(HeldDense(5)))  # it is there already


def separate(on: Learner, step: int) -> list[Push]:
    """The gradients of unequal batches."""
    found = [on.find(make_batch(PLAIN, 20 + 3 * i, 10 * step + i)) for i in range(WORKERS)]
    return [on.compute(own, i).kept() for i, own in enumerate(found)]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("name", ["vr_sgd", "vr_momentum", "vr_adam", "vr_lars", "vr_lamb"])
def test_a_sum_with_its_variance_makes_the_step_of_the_separate_gradients(
    name: str, max_norm: float | None, shards: int
) -> None:
    reduced = build(name, lr=0.05, min_gradients=2)
    cluster, alone = Cluster(reduced, max_norm, shards), learner(reduced, max_norm)
    plain = learner(build(name.removeprefix("vr_"), lr=0.05), max_norm)
    ring = Spreads(cluster.truth)
    cluster.dense_copy.take(cluster.pull(HeldDense()), None)
    for step in range(1, 6):
        pushes = separate(cluster.truth, step)
        for server in (alone.server, plain.server):
            server.apply_group([(push, 1.0) for push in pushes], lr_scale=0.5 + step / 7)
        summed = ring.summed(pushes, 4)
        cluster.step(summed, 0.5 + step / 7)
        cluster.dense_copy.take(cluster.pull(HeldDense(step - 1, 4)), summed[0].dense, summed[0].variance)
        cluster.assert_same()
        # Adam and LAMB divide by the size of a gradient: where that is near 0, rounding is a share of the move.
        torch.testing.assert_close(cluster.truth.server.flat, alone.server.flat, rtol=1e-3, atol=5e-5)
    assert (alone.server.flat - plain.server.flat).abs().max() > 1e-3


@pytest.mark.parametrize("shards", [1, 3])
def test_members_of_a_ring_are_counted(shards: int) -> None:
    """Too few for a variance that says something: the step is that of the rule alone."""
    cluster = Cluster(build("vr_adam", lr=0.05, min_gradients=WORKERS + 1), None, shards)
    plain = Cluster(build("adam", lr=0.05), None, shards)
    ring = Spreads(cluster.truth)
    cluster.dense_copy.take(cluster.pull(HeldDense()), None)
    for step in range(1, 4):
        summed = ring.summed(separate(cluster.truth, step), 4)
        cluster.step(summed, 1.0)
        plain.step(summed, 1.0)
        answers = cluster.pull(HeldDense(step - 1, 4))
        assert all(isinstance(answer.dense, StepOnSum) for answer in answers)
        assert all(2.9 < answer.dense.gradients < 3 for answer in answers)
        cluster.dense_copy.take(answers, summed[0].dense, summed[0].variance)
        cluster.assert_same()
        assert torch.equal(cluster.truth.server.flat, plain.truth.server.flat)


def test_who_lags_or_holds_another_sum_is_brought_the_state() -> None:
    cluster = Cluster(gs.Adam(0.01), None, 2)
    for group in (1, 1):
        cluster.step(a_round(cluster.truth, group, 0), 1.0)
    for held in (HeldDense(), HeldDense(0, 1), HeldDense(1), HeldDense(1, 2)):
        answers = cluster.pull(held)
        assert all(isinstance(answer.dense, DenseValues) for answer in answers)
        assert all(answer.dense.state.keys() == {"step", "mean", "square"} for answer in answers)
    mixed = [
        *a_round(cluster.truth, 3, 20),
        cluster.truth.compute(cluster.truth.find(make_batch(PLAIN, 9, 1)), 1),
    ]
    cluster.step(mixed, 1.0)  # more than the ring's sum
    cluster.dense_copy.take(cluster.pull(HeldDense(2, 3)), mixed[0].dense)
    cluster.assert_same()


def test_others_get_the_values_alone() -> None:
    answers = Cluster(gs.Adam(0.01), None, 2).pull(None)
    assert all(isinstance(answer.dense, DenseValues) and not answer.dense.state for answer in answers)


def test_optimizers_that_need_more_than_a_sum_are_named() -> None:
    assert why_not_copied(learner(gs.Adam(0.01)).server) == ""
    reduced = learner(VarianceReduced(gs.Adam(0.01))).server
    assert why_not_copied(reduced) == "" and wants_spread(reduced)
    assert not wants_spread(learner(gs.Adam(0.01)).server)
    strange = learner(gs.Adam(0.01)).server
    strange.optimizer_state["temperature"] = torch.tensor(1.0)
    assert "one number for each weight" in why_not_copied(strange)
    parts = StatePart("step", each=False, counts=True), StatePart("mean"), StatePart("square")
    assert state_of(learner(gs.Adam()).server) == parts
