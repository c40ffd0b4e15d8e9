"""Runs on Ray: sync is what threads make of it, every strategy keeps its accounts, and runs move between engines."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gearshift as gs
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray import launch
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import event_log
from gearshift.run import folder as run_folder
from gearshift.run.replay import replay
from gearshift.sync.registry import REPLICATED, STRATEGIES
from tests.flat_trainer import flat_trainer
from tests.ledger import Ledger
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Broken, Normed, Slow

pytestmark = ON_RAY
GRADIENT = [name for name in STRATEGIES if name not in REPLICATED]
DATA = gs.read(gs.ClickLog(examples=12_000, days=2))
VALID = gs.read(gs.ClickLog(examples=2_000, days=1, seed=7))
GLOBAL = 256


def trainer(path: Path, **settings: Any) -> gs.Trainer:
    given: dict[str, Any] = {
        "global_batch": GLOBAL,
        "workers": 2,
        "shards": 2,
        "seed": 3,
        "threads": 1,
        "shuffle": True,
        "checkpoint": gs.CheckpointPolicy(None, path=path),
    }
    return flat_trainer(**given | settings)


def normed(kind: type[Normed] = Normed) -> Normed:
    torch.manual_seed(2)
    return kind(DATA.schema)


def state(run: Path) -> dict[str, np.ndarray]:
    """Everything that training moves, of the run's last checkpoint; rows sorted by id."""
    last = Checkpoint.open((run / "checkpoints" / "last").resolve())
    found = {**last.arrays("dense"), **{f"optimizer {k}": v for k, v in last.arrays("optimizer").items()}}
    blocks = list(last.rows("rows0"))
    order = np.argsort(np.concatenate([block.ids_U for block in blocks]))
    for name in ("ids_U", "weights_UW", "state_US", "touches_U", "updates_U"):
        found[name] = np.concatenate([getattr(block, name) for block in blocks])[order]
    return found


def assert_same_state(one: Path, other: Path) -> None:
    expected, got = state(one), state(other)
    assert expected.keys() == got.keys() and len(expected["ids_U"]) > 100
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def evaluations(folder: Path) -> dict[int, dict[str, float]]:
    """By step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: {k: v for k, v in line.items() if k.startswith("valid_")}
        for line in lines
        if "valid_auc" in line
    }


def until(run: LaunchedRun, true: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert not run.finished, f"it ended too early: {run.messages}"
        assert time.monotonic() < end, f"not after {seconds} s, at step {run.status().step}: {run.messages}"
        time.sleep(0.05)


def assert_exact(folder: Path, examples: int, epochs: int = 1) -> Ledger:
    """By the log, by the report, and by a replay."""
    ledger = Ledger.of(folder)
    ledger.assert_exact(examples, epochs)
    said = json.loads((folder / "report.json").read_text())
    assert said["examples"] == examples * epochs
    assert (said["applied"], said["discarded"]) == (ledger.leases(applied=True), ledger.leases(applied=False))
    assert said["global_steps"] == ledger.step
    assert replay(folder).difference is None
    return ledger


def test_sync_equals_threads(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """Two shuffled passes, running statistics, dropout, and measures on the way."""
    settings: dict[str, Any] = {"epochs": 2, "eval_every": gs.Every(steps=20), "best": None}
    there = trainer(tmp_path / "ray", cluster=cluster, **settings).fit(normed(), DATA, VALID)
    here = trainer(tmp_path / "threads", **settings).fit(normed(), DATA, VALID)
    assert_same_state(here.folder, there.folder)
    assert_exact(there.folder, 12_000, epochs=2)
    mine, theirs = evaluations(here.folder), evaluations(there.folder)
    assert mine.keys() == theirs.keys() and len(mine) >= 5
    for step, figures in mine.items():
        assert theirs[step] == pytest.approx(figures, rel=1e-4), step
    assert there.report["progressive"] == pytest.approx(here.report["progressive"], rel=1e-4)
    assert there.auc == pytest.approx(here.auc, abs=1e-4)
    assert there.report["unseen_ids"] == here.report["unseen_ids"]
    assert there.report["unseen_ids"]["ad"] > 0
    assert there.report["warnings"] == here.report["warnings"]
    assert there.report["embedding_rows"] == here.report["embedding_rows"] > 1000
    assert there.report["embedding_bytes"] > 1000 * 4 * there.learner.server.stores[0].width
    np.testing.assert_allclose(there.predict(VALID), here.predict(VALID), rtol=1e-3, atol=1e-5)


@pytest.mark.slow  # test_replicas.py has switches between the families
def test_every_strategy_in_one_live_run(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switched and resized while it trains, stopped, and resumed on threads: no example is lost or trained twice."""
    settings: dict[str, Any] = {"shuffle": False, "strategy": {"name": "sync", "batch": 64}}
    data = gs.read(gs.ClickLog(examples=200_000, days=2))
    run = trainer(tmp_path, cluster=cluster, **settings).start(normed(Slow), data)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 3)
    with pytest.raises(gs.UserError, match=r"^unknown strategy `synk`"):
        run.switch("synk")
    for number, name in enumerate([*GRADIENT[1:], "sync"]):
        before = run.status().step
        switch = run.switch(name)
        assert switch.strategy == name and switch.step >= before
        if number == 0:
            run.resize(3)
            until(run, lambda: '"join":[2]' in log_of(run))
        if number == 2:
            run.resize(2)
        until(run, lambda step=switch.step: run.status().step >= step + 3)
    run.stop()
    until_over(run)
    assert run_folder.read(run.folder).state == "stopped"
    assert sum("3 workers instead of 2" in line for line in run.messages) == 1

    stopped_at = Checkpoint.open((run.folder / "checkpoints" / "last").resolve()).facts["step"]
    monkeypatch.setattr(Slow, "pause", 0.0)
    there = trainer(tmp_path, shards=3, workers=4, **settings)
    result = there.fit(normed(Slow), data, resume=run.folder)
    assert result.report["global_steps"] > stopped_at
    ledger = assert_exact(run.folder, 200_000)
    assert ledger.again == 0
    assert replay(run.folder).switches >= len(GRADIENT)
    assert result.report["examples_by_worker"]["2"] > 0


def log_of(run: LaunchedRun) -> str:
    return "".join(file.read_text() for file in event_log.files(run.folder))


def until_over(run: LaunchedRun) -> None:
    end = time.monotonic() + 60
    while not run.finished:
        assert time.monotonic() < end, run.messages
        time.sleep(0.05)


def test_a_run_of_threads_goes_on_as_processes(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """With other shards and workers, and encrypted: it ends where it would have ended."""

    class Stop(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.training.step == 20:
                run.stop()

    whole = trainer(tmp_path / "whole").fit(normed(), DATA)
    part = trainer(tmp_path / "part").fit(normed(), DATA, callbacks=[Stop()])
    assert part.report["global_steps"] == 20
    there = trainer(tmp_path / "part", shards=3, workers=1, cluster=replace(cluster, wire="curve"))
    result = there.fit(normed(), DATA, resume=part.folder)
    assert result.folder == part.folder and result.report["engine"] == "ray"
    assert_same_state(whole.folder, part.folder)
    assert_exact(part.folder, 12_000)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "shard"])
def test_a_process_that_is_asked_to_end(tmp_path: Path, cluster: gs.ClusterSettings, role: str) -> None:
    """As by a spot machine that goes away: what is under way is ended and saved first, and it goes on elsewhere."""
    data = gs.read(gs.ClickLog(examples=60_000, days=2))
    run = trainer(tmp_path, cluster=cluster, shuffle=False, strategy="gba").start(normed(Slow), data)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 5)
    who = To(role, 0)
    os.kill(run.processes()[who][0], signal.SIGTERM)
    until(run, lambda: any(f"{role} 0 was asked to terminate" in said for said in run.messages))
    until(run, lambda: run.figures().get(f"{role}-0", {}).get("restarts", 0) == 1)
    step = run.status().step
    until(run, lambda: run.status().step > step + 3)
    run.stop()
    run.wait(60)
    assert len(list((run.folder / "checkpoints").glob("step-*"))) >= 2
    again = trainer(tmp_path, shuffle=False, strategy="gba").start(normed(Slow), data, resume=run.folder)
    again.wait(90)
    assert_exact(run.folder, 60_000)
    if role == "worker":
        assert not any("are computed again" in said for said in run.messages)


@pytest.mark.slow
def test_a_run_stops_before_anybody_works(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """Asked before the coordinator has begun; what is saved goes on elsewhere."""
    run = trainer(tmp_path, cluster=cluster).start(normed(), DATA)
    run.stop()
    run.wait(60)
    assert run.status().phase == "stopped" and run.status().step == 0
    again = trainer(tmp_path, cluster=None).start(normed(), DATA, resume=run.folder)
    again.wait(60)
    assert_exact(run.folder, 12_000)


def test_a_worker_that_always_fails_ends_the_run(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """With its own error, not with endless restarts."""
    run = trainer(tmp_path, shards=1, workers=1, cluster=cluster).start(normed(Broken), DATA)
    where = r"worker 0 failed 3 times, most recently: ArithmeticError: no two .* \(modules\.py:\d+, in forward\); "
    with pytest.raises(gs.UserError, match=where):
        run.wait(120)
    record, log = run_folder.read(run.folder), (run.folder / "run.log").read_text()
    assert record.state == "failed" and "no two of these numbers go together" in record.reason
    assert "\n" not in record.reason and "Traceback (most recent call last)" in log


def test_a_folder_of_sockets_is_for_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from gearshift.engine.ray.actors import ProcessPlacement, start

    plan = ProcessPlacement("far", {}, 1, 1)
    nodes = [{"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}"} for name in "1234"]
    monkeypatch.setattr(start.ray, "nodes", lambda: nodes)
    placed = {"bundles_to_node_id": {0: "1", 1: "3"}}
    monkeypatch.setattr(start, "placement_group_table", lambda group: placed)
    with pytest.raises(gs.UserError, match=r"placed the run on 2 \(10\.0\.0\.1, 10\.0\.0\.3\)"):
        start.refuse_several_machines(plan)
    placed["bundles_to_node_id"][1] = "1"
    start.refuse_several_machines(plan)


def test_no_room(tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PLACE_SECONDS", 1.0)
    with pytest.raises(gs.UserError, match=r"needs 101\.5 CPUs \(5 processes\); the Ray cluster has 12"):
        trainer(tmp_path, cluster=replace(cluster, worker_cpus=50.0)).start(normed(), DATA)


def test_nobody_at_that_address(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    with pytest.raises(gs.UserError, match=r"cannot reach Ray at 127\.0\.0\.1:1 .*Is the head up"):
        trainer(tmp_path, cluster=replace(cluster, address="127.0.0.1:1")).start(normed(), DATA)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", GRADIENT)
def test_a_strategy_trains_to_the_end(tmp_path: Path, cluster: gs.ClusterSettings, strategy: str) -> None:
    data = gs.read(gs.ClickLog(examples=40_000, days=2))
    settings: dict[str, Any] = {"strategy": {"name": strategy, "batch": 64}, "shuffle": False, "workers": 3}
    there = trainer(tmp_path / "ray", cluster=cluster, **settings).fit(normed(), data)
    here = trainer(tmp_path / "threads", **settings).fit(normed(), data)
    assert_exact(there.folder, 40_000)
    assert there.auc == pytest.approx(here.auc, abs=0.02)
