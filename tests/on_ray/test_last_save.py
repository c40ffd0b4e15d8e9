"""The last save of a run on Ray, on a disk that is full: nothing is lost, also if a shard is lost meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.parameters.checkpoint import Checkpoint
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow
from tests.on_ray.test_runs import normed, trainer, until
from tests.small_disk import SmallDisk, small_disk

pytestmark = ON_RAY
DATA = gs.read(gs.ClickLog(examples=6_000, days=2))


def filled(disk: SmallDisk, cluster: gs.ClusterSettings) -> LaunchedRun:
    """A run whose last save fails and is tried again."""
    run = trainer(disk.path, cluster=cluster, shuffle=False).start(normed(Slow), DATA)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 5)
    disk.fill()
    until(run, lambda: told(run, "could not write its part of step-24") > 0)
    assert told(run, "no space left on") and told(run, f"To give up: Ctrl-C or `gearshift stop {run.folder}`")
    assert run.status().phase == "saving"
    return run


def told(run: LaunchedRun, what: str) -> int:
    run.status()
    return sum(what in line for line in run.messages)


@pytest.mark.slow  # on threads: unit/test_last_save.py
def test_a_full_disk_at_the_last_save(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    with small_disk(tmp_path / "disk", "32m") as disk:
        run = filled(disk, cluster)
        disk.free()
        assert run.wait(120).report["global_steps"] == 24
        assert told(run, "of retries") == 1 and not told(run, "continues from step")


@pytest.mark.slow
def test_a_full_disk_at_the_last_save_and_at_a_rewind(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    with small_disk(tmp_path / "disk", "32m") as disk:
        run = filled(disk, cluster)
        pids = {tuple(place): pid for place, (pid, _) in run.processes().items()}
        os.kill(pids["shard", 1], signal.SIGKILL)
        until(run, lambda: told(run, "cluster.json was not written: no space left") > 0)
        disk.free()
        assert run.wait(120).report["global_steps"] == 24
        saved = Checkpoint.open((run.folder / "checkpoints" / "last").resolve())
        assert (saved.facts["step"], saved.facts["progress"]["examples"]) == (24, 6_000)
        assert not told(run, "silent for 5 s; its examples"), "workers have left in good order"
        assert told(run, "of retries")


@pytest.mark.slow
def test_it_is_given_up_by_a_stop(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    with small_disk(tmp_path / "disk", "32m") as disk:
        run = filled(disk, cluster)
        run.stop(give_up=True)
        with pytest.raises(gs.UserError, match=r"no space left on .* Retrying was stopped on request"):
            run.wait(60)
