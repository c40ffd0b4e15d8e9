"""Processes that freeze, crash again and again, or cannot write when they restart: the run recovers, or says why not.

The `cluster` fixture checks after each test that no process of the run is left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gearshift as gs
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray import launch
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.run import folder as run_folder
from tests.flat_trainer import flat_trainer
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Killed, Normed, Slow

pytestmark = ON_RAY
DATA = gs.read(gs.ClickLog(examples=400_000, days=2))


def start(path: Path, cluster: gs.ClusterSettings, kind: type[Normed] = Slow, **more: Any) -> LaunchedRun:
    torch.manual_seed(2)
    policy = gs.CheckpointPolicy(None, path=path)
    trainer = flat_trainer(
        global_batch=256, workers=2, shards=1, threads=1, cluster=cluster, checkpoint=policy, **more
    )
    run = trainer.start(kind(DATA.schema), DATA)
    assert isinstance(run, LaunchedRun)
    return run


def until(run: LaunchedRun, true: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert not run.finished, f"it ended too early: {run.messages}"
        assert time.monotonic() < end, f"not after {seconds} s, at step {run.status().step}: {run.messages}"
        time.sleep(0.05)


def goes_on(run: LaunchedRun) -> None:
    """Steps are made, also if the run went back to a checkpoint."""
    step = run.status().step
    until(run, lambda: run.status().step != step)
    step = run.status().step
    until(run, lambda: run.status().step > step + 2)


def coordinator(run: LaunchedRun) -> int:
    return int(json.loads((run.folder / "cluster.json").read_text())["pid"])


def has_said(run: LaunchedRun, part: str) -> bool:
    run.status()
    return any(re.search(part, line) for line in run.messages)


@pytest.mark.slow
def test_what_freezes_for_ever_is_replaced(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """All at once; the next coordinator has never heard of the shard and the worker, and replaces them."""
    run = start(tmp_path, cluster)
    until(run, lambda: run.status().step >= 3 and len(run.processes()) == 3)
    places = run.processes()
    for pid in (places[To("worker", 1)][0], places[To("shard", 0)][0], coordinator(run)):
        os.kill(pid, signal.SIGSTOP)
    until(run, lambda: has_said(run, "the coordinator has not answered for "))
    for name in ("shard 0", "worker 1"):
        until(
            run, lambda name=name: has_said(run, f"{name} has not answered for .*; it will be replaced after")
        )
        until(run, lambda name=name: has_said(run, f"{name} has not answered for .*; replacing it"))
    goes_on(run)
    run.stop()
    run.wait(60)
    assert run_folder.read(run.folder).state == "stopped"


@pytest.mark.slow  # 40 s; what waits for the folder is tested in unit/cluster/test_site.py
def test_a_coordinator_that_cannot_write_when_it_restarts(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for its folder; if that does not come back, the run ends with a sentence, and with all its processes."""
    monkeypatch.setattr(launch, "FOLDER_SECONDS", 8.0)
    run = start(tmp_path, cluster)
    until(run, lambda: run.status().step >= 3)
    away = tmp_path / "away"
    for comes_back in (True, False):
        victim = coordinator(run)
        run.folder.rename(away)
        os.kill(victim, signal.SIGKILL)
        if comes_back:
            until(
                run,
                lambda: has_said(
                    run, f"the coordinator cannot write in {run.folder} .the run's folder is gone"
                ),
            )
            away.rename(run.folder)
            goes_on(run)
    with pytest.raises(
        gs.UserError, match=r"could not write in .* for \d+\.\d s .* gearshift train --resume"
    ) as error:
        run.wait(120)
    assert "\n" not in str(error.value)
    away.rename(run.folder)
    assert run.status().phase == "failed"


@pytest.mark.slow
def test_a_process_that_is_always_killed_ends_the_run(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a start takes; and starts are further and further apart."""
    run = start(tmp_path, cluster, Killed)
    with pytest.raises(
        gs.UserError, match=r"worker \d was killed 8 times without progress .* ran out of memory"
    ):
        run.wait(280)
    assert has_said(run, "has ended 3 times without progress; it starts again in 2 s")
    assert run_folder.read(run.folder).state == "failed"
