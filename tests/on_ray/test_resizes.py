"""Another number of workers in a live run: with every strategy, beside switches, losses, notices and checkpoints."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gearshift as gs
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.sync.registry import REPLICATED, STRATEGIES
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow
from tests.on_ray.test_runs import assert_exact, normed, trainer, until

pytestmark = ON_RAY
EXAMPLES = 60_000
DATA = gs.read(gs.ClickLog(examples=EXAMPLES, days=2))


def started(tmp_path: Path, cluster: gs.ClusterSettings, strategy: str, **more: Any) -> LaunchedRun:
    """No batch is chosen: each resize cuts the global batch anew."""
    run = trainer(tmp_path, cluster=cluster, shuffle=False, strategy=strategy, **more).start(
        normed(Slow), DATA
    )
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 3)
    return run


def goes_on(run: LaunchedRun, steps: int = 4) -> None:
    step = run.status().step
    until(run, lambda: run.status().step >= step + steps)


def ends(run: LaunchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, and resumed on threads: every example is counted once."""
    run.stop()
    run.wait(120)
    monkeypatch.setattr(Slow, "pause", 0.0)
    trainer(tmp_path, shuffle=False, shards=1).fit(normed(Slow), DATA, resume=run.folder)
    assert_exact(run.folder, EXAMPLES)


@pytest.mark.slow
def test_a_resize_among_replicas(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after a switch, and right before one: the share of a replica's batch changes with the workers."""
    run = started(tmp_path, cluster, "sync")
    run.switch("easgd")
    run.resize(1)
    goes_on(run)
    run.resize(2)
    run.switch("k_step_adam", exchange=2, warmup_steps=0)
    run.resize(4)
    goes_on(run)
    run.switch("gba")
    run.resize(2)
    goes_on(run)
    ends(run, tmp_path, monkeypatch)
    cuts = [line.rsplit(" ", 1)[-1] for line in run.messages if "the global batch stays 256" in line]
    assert cuts == ["256", "128", "64", "128"], run.messages


def killed(role: str, number: int) -> Callable[[LaunchedRun], None]:
    return lambda run: signalled(run, role, number, signal.SIGKILL)


def signalled(run: LaunchedRun, role: str, number: int, what: signal.Signals) -> None:
    pids = {tuple(place): pid for place, (pid, _) in run.processes().items()}
    os.kill(pids[role, number], what)


BESIDE: list[Callable[[LaunchedRun], None]] = [
    killed("worker", 0),
    lambda run: run.checkpoint(),
    lambda run: signalled(run, "worker", 0, signal.SIGTERM),  # given notice
    lambda run: run.switch("easgd"),
    killed("shard", 1),
    lambda run: run.switch("sync"),
    killed("coordinator", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*STRATEGIES])
def test_a_resize_beside_everything_else(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """What happens comes right after a resize, or right before one; each strategy begins with another."""
    first = [*STRATEGIES].index(strategy)
    run = started(
        tmp_path, cluster, strategy, checkpoint=gs.CheckpointPolicy(gs.Every(steps=10), path=tmp_path)
    )
    for number in range(len(BESIDE)):
        happen = BESIDE[(first + number) % len(BESIDE)]
        workers = 1 + (run.status().step + number) % 2 * 3
        if number % 2:
            run.resize(workers)
            happen(run)
        else:
            happen(run)
            until_resized(run, workers)
        goes_on(run)
        if strategy in REPLICATED:
            run.switch(strategy)  # it may be another by now
    ends(run, tmp_path, monkeypatch)


def until_resized(run: LaunchedRun, workers: int) -> None:
    """A coordinator that was just lost is asked again."""

    def asked() -> bool:
        try:
            run.resize(workers)
        except (gs.UserError, TimeoutError):
            return False
        return True

    until(run, asked)
