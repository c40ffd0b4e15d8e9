"""Predicted pulls in one process: threads do what the simulator does, and nobody else sees the prediction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal, Slow
from gearshift.engine.epoch import Epoch
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.engine.simulation.simulator import simulate
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import Push
from gearshift.parameters.server import RowSettings
from gearshift.run.replay import replay
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Begin,
    DataExhausted,
    Event,
    Extrapolation,
    GradientArrived,
    Lease,
    Supplied,
    WorkerJoined,
    WorkRequested,
)
from gearshift.sync.registry import make_strategy
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner, ModelCopy
from gearshift.training.worker import Worker, stream_of
from tests.flat_trainer import flat_trainer

BATCH, WORKERS, EXAMPLES = 20, 5, 1200
ALL = {"predicted_pull": True, "staleness_rate": True, "late_rows": "unchanged", "max_lag": 1}
OFF = {"predicted_pull": False, "staleness_rate": False, "late_rows": "drop"}


def data() -> gs.Dataset:
    return gs.read(make_batch(PLAIN, EXAMPLES), PLAIN)


def learner(shards: int = 1) -> Learner:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    return Learner(
        Worker(model, PLAIN), rows=RowSettings(gs.RowAdagrad()), optimizer=gs.Adam(lr=0.01), shards=shards
    )


def cluster(workers: int = WORKERS) -> ClusterModel:
    slow = (Slow(3.0, (2,)),) if workers > 2 else ()
    return ClusterModel(workers, Compute(per_batch=0.1), slow=slow, lognormal=(Lognormal(0.4),), seed=3)


def strategy(**settings):
    return make_strategy("gba", {"global_batch": 3 * BATCH, "batch": BATCH, **settings})


def in_virtual_time(workers: int = WORKERS, **settings) -> Learner:
    on = learner()
    train_in_virtual_time(on, data(), cluster(workers), strategy(**settings))
    return on


def state(on: Learner) -> list[np.ndarray]:
    arrays = [on.server.flat.numpy(), *(values.numpy() for values in on.server.optimizer_state.values())]
    for store in on.server.stores:
        blocks = list(store.blocks())
        order = np.argsort(np.concatenate([block.ids_U for block in blocks]))
        arrays += [np.concatenate([block.weights_UW for block in blocks])[order]]
        arrays += [np.concatenate([block.state_US for block in blocks])[order]]
    return arrays


def same(one: Learner, other: Learner) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(state(one), state(other), strict=True))


class Threads:
    """What `LocalEpoch` and its workers do, at the times of a trace: a pull at `Begin`, a push at its arrival."""

    def __init__(self, on: Learner, **settings) -> None:
        self.on, self.shards = on, LocalShards(on.server, on.layout)
        self.copies = [on.model_copy() for _ in range(WORKERS)]
        self.batches = {batch.first: on.find(batch) for batch in data().batches(BATCH)}
        self.pushes: dict[int, Push] = {}
        self.extrapolated = 0
        coordinator = Coordinator(strategy(**settings), make_strategy)
        self.epoch = Epoch(coordinator, self.shards, self, self.begin)

    def begin(self, begin: Begin) -> None:
        first, predicted = begin.lease.first, self.shards.extrapolate(begin)
        self.extrapolated += predicted is not None
        copy = self.copies[begin.worker]
        self.pushes[begin.lease.number] = copy.compute(
            self.batches[first], stream_of(0, first), None, predicted
        ).kept()

    def follow(self, event: Event) -> None:
        match event:
            case WorkerJoined(worker):
                self.epoch.joined(worker)
            case WorkRequested(worker):
                self.epoch.requested(worker)
            case Supplied(first, count, batch):
                self.epoch.supply(first, count, batch)
            case DataExhausted():
                self.epoch.exhausted()
            case GradientArrived(worker, lease):
                self.shards.push(lease, self.pushes[lease])
                self.epoch.arrived(worker, lease, self.pushes[lease])
                self.shards.keep(lease)

    # The host of the epoch

    def rate(self, examples: int) -> float:
        return 1.0

    def horizons(self, step: int) -> None:
        return None

    def ended(self, leases) -> None: ...

    def stepped(self) -> bool:
        return True


def trace(**settings) -> Iterator[Event]:
    events: list[Event] = []
    simulate(cluster(), strategy(**settings), EXAMPLES, log=lambda event, actions: events.append(event))
    yield from events


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "settings", [ALL, {"predicted_pull": True}, {"late_rows": "unchanged", "max_lag": 0}]
)
def test_threads_do_what_the_simulator_does_on_the_same_trace(shards: int, settings) -> None:
    settings = OFF | settings
    threads = Threads(learner(shards), **settings)
    try:
        for event in trace(**settings):
            threads.follow(event)
    finally:
        threads.shards.close()
    assert (threads.extrapolated > 5) is settings["predicted_pull"]
    assert same(threads.on, in_virtual_time(**settings))


@pytest.mark.parametrize("setting", ["predicted_pull", "staleness_rate", "late_rows"])
def test_each_setting_has_an_effect_with_stale_workers_and_none_with_one(setting: str) -> None:
    on, off = OFF | {setting: ALL[setting], "max_lag": 0}, OFF | {"max_lag": 0}
    assert not same(in_virtual_time(**on), in_virtual_time(**off))
    assert same(in_virtual_time(1, **on), in_virtual_time(1, **off))


def test_snapshots_and_evaluations_are_of_the_true_parameters() -> None:
    threads, events = Threads(learner(), **ALL), list(trace(**ALL))
    for event in events[: len(events) // 2]:
        threads.follow(event)
    on, work = threads.on, threads.epoch.coordinator.work
    assert work.waiting or work.flying
    before, auc = state(on), evaluate(on, data()).measures.auc
    ahead = Begin(0, Lease(0, 0, 1), work.step + 3, work.step, Extrapolation(3, 0.5))
    predicted = threads.shards.extrapolate(ahead)
    assert predicted is not None and not np.array_equal(predicted.numpy(), before[0])
    snapshot = on.snapshot()
    snapshot.close()
    for name, values in on.worker.dense.views(torch.from_numpy(before[0])).items():
        assert np.array_equal(snapshot.arrays["dense"][name], values.numpy())
    assert all(np.array_equal(a, b) for a, b in zip(state(on), before, strict=True))
    assert evaluate(on, data()).measures.auc == auc


# ---- whole runs ----


class SaveAndStop(gs.Callback):
    def on_step(self, run: gs.Run) -> None:
        if run.status().step == 9:
            run.stop()


def trainer(path: Path, **more) -> gs.Trainer:
    return flat_trainer(
        global_batch=60,
        checkpoint=gs.CheckpointPolicy(None, path=path),
        optimizer=gs.Adam(lr=0.01),
        strategy={"name": "gba", "batch": BATCH, **ALL},
        **more,
    )


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])


def test_a_resumed_run_gives_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole").fit(model(), data())
    folder = trainer(tmp_path / "parts").fit(model(), data(), callbacks=[SaveAndStop()]).folder
    resumed = trainer(tmp_path / "parts").fit(model(), data(), resume=folder)
    assert resumed.report["global_steps"] == whole.report["global_steps"] == 20
    assert same(whole.learner, resumed.learner)


def test_threads_compute_on_predictions_train_every_example_and_their_log_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, seen = ModelCopy.compute, list[bool]()

    def compute(self, indexed, draw, flat=None, predicted=None):
        push = computed(self, indexed, draw, flat, predicted)
        if predicted is not None:
            seen.append(torch.equal(self.worker.dense.flat, predicted))
        return push

    monkeypatch.setattr(ModelCopy, "compute", compute)
    result = trainer(tmp_path, workers=4).fit(model(), data())
    assert seen and all(seen)
    report = result.report
    assert report["examples"] == EXAMPLES and report["applied"] + report["discarded"] == EXAMPLES // BATCH
    assert replay(result.folder).difference is None
