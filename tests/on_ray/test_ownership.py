"""A run whose coordinator is lost is still somebody's: it recovers, nobody else gets it, and what it cost is kept."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.run import control_socket, ownership
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.event_log import last_step
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow
from tests.on_ray.test_runs import normed, trainer, until

pytestmark = ON_RAY


def test_a_run_recovers_under_its_own_session(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    data = gs.read(gs.ClickLog(examples=60_000, days=2))
    every = gs.CheckpointPolicy(gs.Every(steps=10_000), path=tmp_path)  # only the one before the first step
    run = trainer(tmp_path, cluster=cluster, shuffle=False, checkpoint=every).start(normed(Slow), data)
    assert isinstance(run, LaunchedRun)
    folder, began = run.folder, time.monotonic()
    until(run, lambda: (last_step(folder) or 0) >= 7)
    first = ownership.current(folder)
    assert first is not None and first.fence == 2  # the starter had the first
    assert {keeper.path.name for keeper in ownership.keepers(folder, first.session)} == {
        f"keep-{who}.json" for who in ("driver", "ray", "shard-0", "shard-1", "worker-0")
    }
    # A coordinator that does not find its state waits for it: until we put it back, there is none.
    state, away = folder / run_folder.CLUSTER, tmp_path / run_folder.CLUSTER
    state.rename(away)
    os.kill(first.pid, signal.SIGKILL)
    until(run, lambda: run_folder.read(folder).state == "recovering")
    record = run_folder.read(folder)
    assert record.standing.since is not None and not record.standing.answers
    assert f"its owner, process {first.pid}, died and is being restarted" in record.standing.what
    with pytest.raises(
        gs.UserError, match=r"is recovering: .* is being restarted by other processes of the run; wait"
    ):
        run_folder.claim(folder)
    with pytest.raises(control_socket.NotLive, match="is recovering since"):
        control_socket.check_live(folder, "switch")
    assert ownership.current(folder) == first
    reached = last_step(folder)
    assert reached is not None and reached >= 7
    away.rename(state)
    until(run, lambda: any("the coordinator was lost" in said for said in run.messages))
    until(run, lambda: run_folder.read(folder).state == "running")
    second = ownership.current(folder)
    assert second is not None and (second.fence, second.session) == (3, first.session)
    until(run, lambda: run.status().seconds_since_step < 60)
    assert run.status().wall_seconds >= time.monotonic() - began - 1
    run.stop()
    run.wait(60)
    assert run_folder.read(folder).state == "stopped"
    totals = run_log.totals(folder)
    assert totals.restarts == {"coordinator": 1} and totals.seconds_lost > 0
    fault = next(fault for fault in run_log.faults(folder) if fault.kind == "lost")
    assert (fault.role, fault.reason) == ("coordinator", "the coordinator was lost")
    assert fault.redone_steps == totals.redone_steps == reached
    assert any(f"continues from step-0: {reached} steps are repeated" in said for said in run.messages)
    log = (folder / run_log.LOG).read_text()
    assert "owns the run (lease 1)" in log and "owns the run (lease 3)" in log
    assert "the coordinator was lost and restarted" in log and log.rstrip().endswith("  stopped")
