"""The average of the dense parameters: its rule, who moves it and when, and that training does not read it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from flat_trainer import flat_trainer
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.parameters.average import CLOCK, AverageClock, DenseAverage, arrays_of, load_arrays, shown
from gearshift.parameters.average_rule import AverageRule
from gearshift.parameters.checkpoint import Checkpoint, write
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.replicas.group import Replicas
from gearshift.parameters.server import RowSettings
from gearshift.parameters.shard import ApplyStep, Shard
from gearshift.run.report import closing_lines
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

RULE = AverageRule(0.9, young=4.0)
shares = st.lists(st.floats(0.01, 3.0), min_size=1, max_size=12)


def learner(shards: int = 1, rule: AverageRule | None = RULE, *, batch_norm: bool = True) -> Learner:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8], batch_norm=batch_norm)
    rows = RowSettings(gs.RowAdagrad(lr=0.1))
    return Learner(Worker(model, PLAIN), rows=rows, optimizer=gs.Adam(), shards=shards, average=rule)


def average_of(on: Learner) -> DenseAverage:
    assert on.server.average is not None
    return on.server.average


def push_of(on: Learner, seed: int):
    return on.model_copy().compute(on.find(make_batch(PLAIN, 20, seed)), seed).kept()


# ---- the rule ----


@given(pieces=shares, before=st.floats(0, 1000))
@pytest.mark.parametrize("rule", [AverageRule(0.99, young=0.0), AverageRule(1.0, young=19.0)])
def test_many_small_steps_keep_as_much_as_one_large_step(
    rule: AverageRule, pieces: list[float], before: float
) -> None:
    age, kept = before, 1.0
    for share in pieces:
        kept, age = kept * rule.kept(age, share), age + share
    assert kept == pytest.approx(rule.kept(before, sum(pieces)), rel=1e-9, abs=1e-12)


@given(decay=st.floats(0.5, 0.9999), young=st.floats(0, 50), pieces=shares)
def test_the_first_weights_leave_the_average_at_the_first_step_and_it_stays_a_mean(
    decay: float, young: float, pieces: list[float]
) -> None:
    rule, start = AverageRule(decay, young=young + 0.1), torch.full((3,), 1e6)
    average = DenseAverage.starting_at(rule, start, {})
    seen = []
    for i, share in enumerate(pieces):
        seen.append(float(i % 5))
        average.count(share)
        average.follow(torch.full((3,), seen[-1]), {})
        assert min(seen) - 1e-5 <= average.flat[0] <= max(seen) + 1e-5
    assert average.clock.age + average.clock.waiting == pytest.approx(sum(pieces))
    assert not rule.is_due(average.clock.age, average.clock.waiting)


def test_it_equals_a_plain_reference_in_float64() -> None:
    values = torch.randn(300, 40, generator=torch.Generator().manual_seed(1)).cumsum(0)
    average, reference = DenseAverage.starting_at(RULE, values[0], {}), values[0].double()
    for age, flat in enumerate(values[1:]):
        average.count(1.0)
        average.follow(flat, {})
        kept = min(0.9, (age / (age + 1)) ** 4)
        reference = kept * reference + (1 - kept) * flat.double()
    torch.testing.assert_close(average.flat.double(), reference, rtol=1e-5, atol=1e-5)


def test_with_a_long_horizon_it_moves_fifty_times_per_horizon_and_keeps_as_much() -> None:
    rule, moved, previous = AverageRule(0.999, young=19.0), 0, -1.0
    average, ones = DenseAverage.starting_at(rule, torch.zeros(2), {}), torch.ones(2)
    average.restart(torch.zeros(2), {}, AverageClock(30_000.0))
    for _ in range(1000):
        average.count(1.0)
        average.follow(ones, {})
        moved, previous = moved + (float(average.flat[0]) != previous), float(average.flat[0])
    assert moved == 50 + 1, "and the value before the first move"
    assert average.flat[0] == pytest.approx(1 - 0.999**1000, rel=1e-5)
    assert average.clock == AverageClock(31_000.0, 0.0)


def test_what_changes_without_training_is_not_followed() -> None:
    average = DenseAverage.starting_at(RULE, torch.zeros(4), {})
    average.follow(torch.ones(4), {})
    assert not average.flat.any() and average.clock.age == 0.0


# ---- on servers ----


def test_it_follows_each_step_and_a_step_that_applies_nothing_changes_nothing() -> None:
    on = learner()
    seen: list[Tensor] = []
    for step in range(3):
        on.server.apply_group([(push_of(on, step), 1.0)], lr_scale=1.0, share=0.5)
        seen.append(average_of(on).flat.clone())
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))
    assert average_of(on).clock.age == 1.5
    on.server.apply_group([(push_of(on, 9), 0.0)], lr_scale=1.0, share=0.0)
    assert torch.equal(average_of(on).flat, seen[-1]) and average_of(on).clock.age == 1.5


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_that_of_several_shards_is_that_of_one(shards: int) -> None:
    one, many = learner(), learner(shards)
    for epoch in range(2):  # each has threads of its own
        single, several = LocalShards(one.server, one.layout), LocalShards(many.server, many.layout)
        try:
            for step in range(3 * epoch + 1, 3 * epoch + 4):
                for on, where in ((one, single), (many, several)):
                    where.push(step, push_of(on, step))
                    where.carry_out(ApplyStep(step, ((step, 1.0),), share=0.75), step)
        finally:
            several.close()
    assert average_of(one).clock.age == average_of(many).clock.age == 4.5
    assert torch.equal(average_of(one).flat, average_of(many).flat)
    assert not torch.equal(average_of(one).flat, one.server.flat)
    for name, values in average_of(one).buffers.items():
        assert torch.equal(values, average_of(many).buffers[name]), name


def test_a_shard_shows_the_average_and_gives_workers_the_newest() -> None:
    on = learner()
    for step in range(3):
        on.step(on.find(make_batch(PLAIN, 20, step)))
    shard, nothing = Shard(on.server), (np.empty(0, np.int64),)
    _, pulled, statistics = shard.pull(nothing)
    assert torch.equal(pulled, on.server.flat)
    assert all(torch.equal(values, on.server.buffers[name]) for name, values in statistics.items())
    _, seen, statistics = shard.peek(nothing)
    assert torch.equal(seen, average_of(on).flat) and not torch.equal(seen, pulled)
    assert all(torch.equal(values, average_of(on).buffers[name]) for name, values in statistics.items())


def test_predictions_use_it_and_leave_the_model_as_it_was() -> None:
    on = learner()
    for step in range(4):
        on.step(on.find(make_batch(PLAIN, 20, step)))
    indexed = on.find(make_batch(PLAIN, 50, 7))
    before = {name: values.clone() for name, values in on.model.state_dict().items()}
    by_average = on.predict(indexed)
    assert all(torch.equal(values, before[name]) for name, values in on.model.state_dict().items())
    assert on.worker.dense.flat is on.server.flat
    flat, statistics = shown(on.server)
    other = learner(rule=None)
    other.server.stores = on.server.stores
    other.server.flat.copy_(flat)
    for name, values in statistics.items():
        other.server.buffers[name].copy_(values)
    assert np.array_equal(other.predict(indexed), by_average)
    other.server.flat.copy_(on.server.flat)
    assert not np.array_equal(other.predict(indexed), by_average)


# ---- replicas ----


def replicas_of(on: Learner, name: str, **settings: object) -> Replicas:
    choices = choices_of(make_strategy(name, {"global_batch": 40, "batch": 20, **settings}))
    assert choices is not None
    replicas = Replicas(on.server, choices)
    replicas.join(0)
    replicas.join(1)
    return replicas


def stepped(on: Learner, replicas: Replicas, seed: int) -> None:
    """One batch of each of two workers: a global batch."""
    for worker in (0, 1):
        replica = replicas.of(worker)
        assert replica is not None
        found = on.find(make_batch(PLAIN, 20, 2 * seed + worker))
        push = on.model_copy().compute(found, seed, replica.flat)
        applied = replicas.step(worker, push, lr_scale=1.0)
        on.server.apply_group([(applied, 1.0)], lr_scale=1.0, share=0.5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("k_step_adam", {"exchange": {"every": 2}}), ("bmuf", {"exchange": {"every": 2}})],
)
def test_under_replicas_it_follows_the_merged_model_by_what_was_trained_since(
    name: str, settings: dict
) -> None:
    on = learner(batch_norm=False)
    replicas, merged = replicas_of(on, name, **settings), []
    for meeting in range(3):
        stepped(on, replicas, 2 * meeting)
        stepped(on, replicas, 2 * meeting + 1)
        assert average_of(on).clock.age == 2 * meeting, "no exchange yet"
        replicas.meet()
        merged.append(replicas.common.values.clone())
        assert average_of(on).clock.age == 2 * meeting + 2
    expected = merged[0]
    for age, values in ((2, merged[1]), (4, merged[2])):
        expected = expected.lerp(values, 1.0 - RULE.kept(age, 2.0))
    assert torch.equal(average_of(on).flat, expected)


def test_under_easgd_it_follows_the_centre() -> None:
    on = learner(batch_norm=False)
    replicas = replicas_of(on, "easgd", exchange={"every": 2})
    stepped(on, replicas, 0)
    replicas.send(0)
    replicas.receive((0,))
    assert torch.equal(average_of(on).flat, replicas.common.centre)
    assert not torch.equal(average_of(on).flat, on.server.flat)
    before = average_of(on).flat.clone()
    stepped(on, replicas, 1)
    assert torch.equal(average_of(on).flat, before)
    replicas.show()
    assert average_of(on).clock.age == 2.0 and average_of(on).clock.waiting == 0.0


@pytest.mark.parametrize("shards", [1, 3])
def test_a_switch_does_not_change_it(shards: int) -> None:
    on = learner(shards, batch_norm=False)
    where = LocalShards(on.server, on.layout)
    try:
        for step in (1, 2):
            where.push(step, push_of(on, step))
            where.carry_out(ApplyStep(step, ((step, 1.0),)), step)
        before, age = average_of(on).flat.clone(), average_of(on).clock.age
        replicas_of(on, "easgd").fold()
        assert torch.equal(average_of(on).flat, before) and average_of(on).clock.age == age == 2.0
        replicas = replicas_of(on, "model_averaging", exchange={"every": 1})
        where.push(3, replicas.step(0, push_of(on, 3), lr_scale=1.0))
        where.carry_out(ApplyStep(3, ((3, 1.0),), share=0.5), 3)
        replicas.meet()
        assert average_of(on).clock.age == 2.5 and not torch.equal(average_of(on).flat, before)
    finally:
        where.close()


# ---- in runs ----


@pytest.mark.parametrize("average", ["on", 0, 1.0, -0.5, None, True])
def test_python_refuses_another_value(average: object) -> None:
    with pytest.raises(gs.UserError, match="expected auto, off or a decay between 0 and 1"):
        gs.TrainingSettings(average=average)  # type: ignore[arg-type]


def run_of(folder: Path, **settings: object) -> gs.Result:
    torch.manual_seed(3)
    trainer = flat_trainer(
        **{
            "global_batch": 60,
            "epochs": 2,
            "checkpoint": gs.CheckpointPolicy(gs.Every(steps=7), keep=9, path=str(folder)),
        }
        | settings
    )
    data = gs.read(make_batch(PLAIN, 600), PLAIN)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8], batch_norm=True)
    return trainer.fit(model, data, data.head(300))


def saved(result: gs.Result, name: str = "last") -> Checkpoint:
    return Checkpoint.open((result.folder / "checkpoints" / name).resolve())


def arrays_equal(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("workers", [1, 3])
def test_training_never_reads_it_and_the_report_says_what_was_evaluated(tmp_path: Path, workers: int) -> None:
    off, *others = (
        run_of(tmp_path / str(average), average=average, workers=workers) for average in ("off", "auto", 0.5)
    )
    assert not saved(off).has("average")
    for other in others:
        assert arrays_equal(saved(off).arrays("dense"), saved(other).arrays("dense"))
        assert arrays_equal(saved(off).arrays("optimizer"), saved(other).arrays("optimizer"))
        assert saved(other).arrays("average")[CLOCK].tolist() == [20.0, 0.0]
        assert other.report["progressive"] == off.report["progressive"]
        assert other.report["logloss"] != off.report["logloss"]
    for result, weights in ((off, "newest"), (others[1], "average, decay 0.5")):
        assert result.report["evaluated_weights"] == weights
        assert any(f"(weights: {weights};" in line for line in closing_lines(result.report, tmp_path))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_resumed_run_continues_it_bit_for_bit(tmp_path: Path, workers: int) -> None:
    whole = run_of(tmp_path / "whole", workers=workers)
    torch.manual_seed(3)
    trainer = flat_trainer(
        global_batch=60,
        epochs=2,
        workers=workers,
        checkpoint=gs.CheckpointPolicy(gs.Every(steps=7), keep=9, path=str(tmp_path / "resumed")),
    )
    data = gs.read(make_batch(PLAIN, 600), PLAIN)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8], batch_norm=True)
    resumed = trainer.fit(model, data, data.head(300), resume=whole.folder / "checkpoints" / "step-7")
    assert resumed.folder != whole.folder
    assert arrays_equal(saved(whole).arrays("average"), saved(resumed).arrays("average"))
    assert whole.report["logloss"] == resumed.report["logloss"]


def test_a_saved_model_has_the_average_as_its_weights(tmp_path: Path) -> None:
    result = run_of(tmp_path, average=0.8, best=None)
    rows = make_batch(PLAIN, 40, 9)
    data = gs.read(rows, PLAIN)
    result.save(tmp_path / "model")
    kept, last = Checkpoint.open(tmp_path / "model"), saved(result)
    assert not kept.has("average")
    average = {name: values for name, values in last.arrays("average").items() if name != CLOCK}
    assert arrays_equal({**last.arrays("dense"), **average}, kept.arrays("dense"))
    assert not arrays_equal(last.arrays("dense"), kept.arrays("dense"))
    expected = result.predict(data)
    assert np.array_equal(gs.load(tmp_path / "model").predict(data), expected)
    assert np.array_equal(gs.load(result.folder / "checkpoints" / "last").predict(data), expected)
    again = gs.load(result.folder / "checkpoints" / "last").save(tmp_path / "again")
    assert arrays_equal(Checkpoint.open(again).arrays("dense"), kept.arrays("dense"))


def test_without_a_saved_average_it_starts_at_the_weights(tmp_path: Path) -> None:
    result = run_of(tmp_path, average="off")
    checkpoint = saved(result)
    on = (
        flat_trainer(global_batch=60)
        .prepare(
            gs.models.DeepFM(PLAIN, dim=4, hidden=[8], batch_norm=True),
            gs.read(make_batch(PLAIN, 600), PLAIN),
        )
        .training.learner
    )
    on.restore(checkpoint)
    assert torch.equal(average_of(on).flat, on.server.flat) and average_of(on).clock.age == 0.0
    assert all(
        torch.equal(values, on.server.buffers[name]) for name, values in average_of(on).buffers.items()
    )


def test_a_checkpoint_keeps_every_number_of_it(tmp_path: Path) -> None:
    on, other = learner(), learner()
    for step in range(3):
        on.step(on.find(make_batch(PLAIN, 20, step)))
    average_of(on).count(0.25)
    write(tmp_path / "c", {}, {"average": arrays_of(average_of(on), on.worker.dense)}, {})
    load_arrays(average_of(other), other.worker.dense, Checkpoint.open(tmp_path / "c").arrays("average"))
    assert torch.equal(average_of(on).flat, average_of(other).flat)
    assert average_of(other).clock == AverageClock(3.0, 0.25)
    for name, values in average_of(on).buffers.items():
        assert torch.equal(values, average_of(other).buffers[name])
