"""Sync whose workers sum dense gradients among themselves: the same result, and nothing is lost when a ring breaks."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gearshift as gs
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.optim import build
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow, Smooth
from tests.on_ray.test_runs import (
    DATA,
    assert_exact,
    assert_same_state,
    normed,
    state,
    trainer,
    until,
    until_over,
)

pytestmark = ON_RAY


def ring_rounds(run: LaunchedRun) -> float:
    return run.figures().get("coordinator-0", {}).get("ring_rounds", 0.0)


def by_rings(run: LaunchedRun, seconds: float) -> tuple[gs.Result, float]:
    """What became of it, and how many rounds it told of that were summed so."""
    seen = 0.0
    while not run.finished:
        seen = max(seen, ring_rounds(run))
        time.sleep(0.05)
    return run.wait(seconds), seen


def smooth() -> Smooth:
    torch.manual_seed(2)
    return Smooth(DATA.schema)


def test_sync_by_all_reduce_equals_threads(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """Two shards, a limit on the norm, Adam, running statistics and dropout; two passes, the last round is uneven."""
    settings: dict[str, Any] = {"epochs": 2, "clip_norm": 0.5, "optimizer": gs.Adam(0.01)}
    settings["checkpoint"] = gs.CheckpointPolicy(gs.Every(steps=30), path=tmp_path / "ray")
    run = trainer(tmp_path / "ray", cluster=replace(cluster, sync_transport="all_reduce"), **settings).start(
        normed(), DATA
    )
    there, seen = by_rings(run, 60)
    settings.pop("checkpoint")
    here = trainer(tmp_path / "threads", **settings).fit(normed(), DATA)
    assert seen > 10
    assert_same_state(here.folder, there.folder)
    assert_exact(there.folder, 12_000, epochs=2)
    assert there.report["progressive"] == pytest.approx(here.report["progressive"], rel=1e-4)


@pytest.mark.slow
def test_variance_reduced_by_all_reduce_equals_threads(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sum and variance of four workers' gradients come from the ring; through the servers, from the gradients."""
    settings: dict[str, Any] = {"workers": 4, "embeddings": gs.RowSGD(lr=0.5)}
    settings["optimizer"] = build("vr_adam", lr=0.01, min_gradients=4)
    run = trainer(tmp_path / "ray", cluster=replace(cluster, sync_transport="all_reduce"), **settings).start(
        smooth(), DATA
    )
    there, seen = by_rings(run, 120)
    monkeypatch.setattr(Smooth, "pause", 0.0)
    here = trainer(tmp_path / "threads", **settings).fit(smooth(), DATA)
    plain = trainer(tmp_path / "plain", **settings | {"optimizer": gs.Adam(0.01)}).fit(smooth(), DATA)
    assert seen > 10
    assert_exact(there.folder, 12_000)
    (expected, got, other) = (state(one.folder) for one in (here, there, plain))
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    moved = [np.abs(other[name] - expected[name]).max() for name in other if name.startswith("net.")]
    assert max(moved) > 1e-2, "r must do something for this to be a test"
    assert there.report["progressive"] == pytest.approx(here.report["progressive"], rel=1e-4)


@pytest.mark.slow
def test_a_ring_breaks_and_forms_again(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switched away from sync and back, and a worker killed in the middle: every example ends once."""
    data = gs.read(gs.ClickLog(examples=100_000, days=2))
    run = trainer(tmp_path, shuffle=False, cluster=replace(cluster, sync_transport="all_reduce")).start(
        normed(Slow), data
    )
    assert isinstance(run, LaunchedRun)
    until(run, lambda: ring_rounds(run) >= 5)
    away = run.switch("gba")
    until(run, lambda: run.status().step >= away.step + 5)
    between = ring_rounds(run)
    run.switch("sync")
    until(run, lambda: ring_rounds(run) >= between + 5)
    pid, _ = run.processes()[To("worker", 1)]
    os.kill(pid, signal.SIGKILL)
    at = run.status().step
    until(run, lambda: run.status().step > at + 2 and run.processes()[To("worker", 1)][0] != pid)
    again = ring_rounds(run)
    until(run, lambda: ring_rounds(run) >= again + 5)
    run.stop()
    until_over(run)
    monkeypatch.setattr(Slow, "pause", 0.0)
    result = trainer(tmp_path, shuffle=False).fit(normed(Slow), data, resume=run.folder)
    assert assert_exact(run.folder, 100_000).again == 0
    assert result.report["global_steps"] == -(-100_000 // 256)


def test_all_reduce_is_refused_where_it_would_be_read(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    asked = replace(cluster, sync_transport="all_reduce", wire="curve")
    with pytest.raises(gs.UserError, match=r"neither encrypted nor authenticated.*trusted_network"):
        trainer(tmp_path, cluster=asked).start(normed(), DATA)
    assert replace(asked, sync_transport="auto").transport("curve") == "servers"
    assert replace(asked, trusted_network=True).transport("curve") == "all_reduce"


@pytest.mark.slow
def test_auto_tries_both_and_says_which_it_keeps(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    asked = replace(cluster, sync_transport="auto")
    run = trainer(tmp_path, global_batch=128, cluster=asked).start(normed(), DATA)
    run.wait(120)
    (said,) = [line for line in run.messages if "all-reduce" in line]
    assert re.fullmatch(
        r"sync with 2 workers uses (all-reduce|the servers): a round took [\d.]+ ms with all-reduce, "
        r"[\d.]+ ms through the servers",
        said,
    )
    assert_exact(run.folder, 12_000)
