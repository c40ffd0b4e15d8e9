"""Workers that keep replicas, as processes: as on threads, switched in a live run, and when one of them is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gearshift as gs
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run.replay import replay
from gearshift.sync.registry import REPLICATED
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow
from tests.on_ray.test_runs import (
    DATA,
    VALID,
    assert_exact,
    assert_same_state,
    evaluations,
    log_of,
    normed,
    trainer,
    until,
    until_over,
)

pytestmark = ON_RAY
LONG = gs.read(gs.ClickLog(examples=200_000, days=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "k_step_adam", "exchange": 3, "warmup_steps": 4},
        {"name": "easgd", "exchange": {"every": 2}},
        {"name": "bmuf", "exchange": {"every": 5}, "momentum": 0.5},
    ],
    ids=lambda strategy: strategy["name"],
)
def test_one_trainer_equals_threads(
    tmp_path: Path, cluster: gs.ClusterSettings, strategy: dict[str, Any]
) -> None:
    """Two passes with evaluations: forks, merges, shows and folds at the same batches, with the same values."""
    settings: dict[str, Any] = {
        "epochs": 2,
        "workers": 1,
        "eval_every": gs.Every(steps=20),
        "best": None,
        "strategy": strategy,
    }
    there = trainer(tmp_path / "ray", cluster=cluster, **settings).fit(normed(), DATA, VALID)
    here = trainer(tmp_path / "threads", **settings).fit(normed(), DATA, VALID)
    assert_same_state(here.folder, there.folder)
    assert_exact(there.folder, 12_000, epochs=2)
    mine, theirs = evaluations(here.folder), evaluations(there.folder)
    assert len(mine) >= 4 and len(theirs) >= 4  # an evaluation may fall some steps later
    for step in mine.keys() & theirs.keys():
        assert theirs[step] == pytest.approx(mine[step], rel=1e-4), step
    for figure in ("mean", "exchanges"):
        assert there.report["sync_gap"][figure] == here.report["sync_gap"][figure]


@pytest.mark.slow
def test_switches_between_all_families(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a live run, with a worker that joins; stopped among replicas, and resumed on threads."""
    settings: dict[str, Any] = {"shuffle": False, "strategy": {"name": "sync", "batch": 64}}
    run = trainer(tmp_path, cluster=cluster, **settings).start(normed(Slow), LONG)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 3)
    with pytest.raises(gs.UserError, match="workers_per_replica above 1 shares memory"):
        run.switch("easgd", workers_per_replica=2)
    for name, more in [
        ("easgd", {}),
        ("k_step_adam", {"exchange": 2, "warmup_steps": 0}),
        ("gba", {}),
        ("bmuf", {"pause": 0.1}),
        ("model_averaging", {"exchange": {"every": "200ms"}}),
        ("sync", {}),
        ("easgd", {"exchange": {"every": 2}}),
    ]:
        switch = run.switch(name, **more)
        assert switch.strategy == name
        if name == "bmuf":
            run.resize(3)
            until(run, lambda: '"join":[2]' in log_of(run))
        until(run, lambda step=switch.step: run.status().step >= step + 6)
    run.checkpoint()
    run.stop()
    until_over(run)
    saved = Checkpoint.open((run.folder / "checkpoints" / "last").resolve()).facts
    assert saved["strategy"]["name"] == "easgd" and saved["progress"]["exchanges"]
    monkeypatch.setattr(Slow, "pause", 0.0)
    result = trainer(tmp_path, **settings).fit(normed(Slow), LONG, resume=run.folder)
    assert result.report["global_steps"] > saved["step"]
    assert assert_exact(run.folder, 200_000).again == 0
    assert replay(run.folder).switches >= 7


@pytest.mark.slow
def test_a_resumed_bmuf_run_keeps_its_momentum(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved by shards, it goes on with the velocity it had: on shards as on threads."""
    bmuf = {"name": "bmuf", "exchange": {"every": 5}, "momentum": 0.9}
    settings: dict[str, Any] = {"shuffle": False, "workers": 1, "best": None, "strategy": bmuf}
    run = trainer(tmp_path, cluster=cluster, **settings).start(normed(Slow), DATA)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 12)
    run.stop()
    until_over(run)
    saved = Checkpoint.open((run.folder / "checkpoints" / "last").resolve())
    assert np.abs(saved.arrays("replicas")["velocity"]).max() > 0
    copied = shutil.copytree(run.folder, tmp_path / "copied", symlinks=True)
    monkeypatch.setattr(Slow, "pause", 0.0)
    there = trainer(tmp_path, cluster=cluster, **settings).fit(normed(Slow), DATA, resume=run.folder)
    here = trainer(tmp_path, **settings).fit(normed(Slow), DATA, resume=copied)
    assert_same_state(here.folder, there.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "bmuf"},  # in the background, back to back: it is always in an exchange
        {"name": "k_step_adam", "exchange": 1, "warmup_steps": 0},  # a round after every batch
    ],
    ids=lambda strategy: strategy["name"],
)
def test_a_trainer_that_is_killed_in_an_exchange_stops_nobody(
    tmp_path: Path, cluster: gs.ClusterSettings, strategy: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"shuffle": False, "workers": 3, "strategy": {**strategy, "batch": 64}}
    data = gs.read(gs.ClickLog(examples=30_000, days=2))
    run = trainer(tmp_path, cluster=cluster, **settings).start(normed(Slow), data)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: '"join":[2]' in log_of(run) and run.status().step >= 20)
    pids = {place: pid for place, (pid, _) in run.processes().items()}
    os.kill(next(pid for place, pid in pids.items() if tuple(place) == ("worker", 1)), signal.SIGKILL)
    result = run.wait(180)
    ledger = assert_exact(run.folder, 30_000)
    assert ledger.heads == 1, "no shard was lost, so nothing is done again"
    assert any("worker 1 " in line for line in run.messages), run.messages
    assert result.report["sync_gap"]["exchanges"] > 0 and result.report["sync_gap"]["bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "exchange"),
    [("k_step_adam", 4)]  # which merges every k batches, and no other way
    + [(name, how) for name in REPLICATED if name != "k_step_adam" for how in ("background", 4, "300ms")],
)
def test_a_strategy_trains_to_the_end(
    tmp_path: Path, cluster: gs.ClusterSettings, strategy: str, exchange: Any
) -> None:
    data = gs.read(gs.ClickLog(examples=40_000, days=2))
    wanted = {"name": strategy, "batch": 64, "exchange": exchange}
    settings: dict[str, Any] = {"strategy": wanted, "shuffle": False, "workers": 3}
    there = trainer(tmp_path / "ray", cluster=cluster, **settings).fit(normed(), data)
    here = trainer(tmp_path / "threads", **settings).fit(normed(), data)
    assert_exact(there.folder, 40_000)
    assert there.auc == pytest.approx(here.auc, abs=0.02)
    said = json.loads((there.folder / "report.json").read_text())["sync_gap"]
    assert said["exchanges"] > 0 and said["bytes"] > 0
    if exchange == 4 and strategy != "k_step_adam":
        assert said["mean"] == pytest.approx(4, rel=0.2)


@pytest.mark.slow
def test_a_shard_that_is_killed_among_replicas(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """All go on from the newest checkpoint, with replicas that are forked from it."""
    settings: dict[str, Any] = {
        "shuffle": False,
        "strategy": {"name": "easgd", "batch": 64},
        "checkpoint": gs.CheckpointPolicy(gs.Every(steps=20), path=tmp_path),
    }
    run = trainer(tmp_path, cluster=cluster, **settings).start(normed(Slow), DATA)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: (run.folder / "checkpoints" / "step-20").exists() or run.status().step >= 60)
    pids = {tuple(place): pid for place, (pid, _) in run.processes().items()}
    os.kill(pids["shard", 1], signal.SIGKILL)
    result = run.wait(180)
    ledger = assert_exact(run.folder, 12_000)
    assert ledger.heads >= 2, "a new incarnation"
    assert result.report["sync_gap"]["exchanges"] > 0
