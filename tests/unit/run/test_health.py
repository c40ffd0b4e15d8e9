"""What a run tells while it trains, and what it keeps: states, log, faults, totals, checkpoints in time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import gearshift as gs
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.engine.ray.coordinator_process import report_restart
from gearshift.run import catalog, control_socket, control_socket_server, ownership, process_identity
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.event_log import EventLog, Head
from gearshift.run.health import Health
from gearshift.run.local_run import Run
from gearshift.run.prepared_run import PreparedRun
from gearshift.sync.events import Apply, GradientArrived, Part
from tests.unit.run.test_control_socket import Fake

CONFIG = """\
name: long
data: {synthetic: {examples: 400000, days: 1}}
model: {name: lr}
train: {global_batch: 64, epochs: 100, baseline: false}
checkpoint: {every: 1s}
"""


class Looks(gs.Callback):
    def __init__(self, wait: float = 0.0) -> None:
        self.states: list[str] = []
        self.checkpoints: list[Path] = []
        self.wait = wait

    def on_step(self, run: Run) -> None:
        time.sleep(self.wait)
        self.states.append(run_folder.read(run.folder).state)

    def on_checkpoint(self, run: Run, path: Path) -> None:
        self.checkpoints.append(path)


def trained(tmp_path: Path, looks: Looks, every: gs.Every | None = None, examples: int = 1000) -> gs.Result:
    data = gs.Dataset(GeneratedExamples(gs.ClickLog(examples=examples, days=1)))
    policy = gs.CheckpointPolicy(every=every, path=tmp_path / "runs")
    trainer = gs.Trainer(global_batch=100, checkpoint=policy, training=gs.TrainingSettings(shuffle=False))
    return trainer.fit(gs.models.LR(data.schema), data, callbacks=[looks])


def test_a_run_keeps_its_state_its_sentences_and_its_totals(tmp_path: Path) -> None:
    looks = Looks()
    result = trained(tmp_path, looks)
    assert set(looks.states) == {"running"}
    assert run_folder.read(result.folder).state == "done"
    report = json.loads((result.folder / "report.json").read_text())
    assert (report["restarts"], report["redone_steps"], report["seconds_lost"]) == ({}, 0, 0)
    assert report["failed_saves"] == 0 and 0 <= report["checkpoint_age_seconds"] < 60
    assert report["wall_seconds"] >= report["seconds"]
    log = (result.folder / run_log.LOG).read_text().splitlines()
    assert (
        "started from Python" in log[0] and "owns the run (lease 1)" in log[1] and log[-1].endswith("  done")
    )
    stamp = log[0].split("  ")[0]
    assert time.strptime(stamp, "%Y-%m-%d %H:%M:%S %z")
    metrics = list(run_folder.metrics(result.folder))
    assert all("checkpoint_age_seconds" in line for line in metrics)


def test_checkpoints_are_due_by_wall_time(tmp_path: Path) -> None:
    """Ten steps that train for next to no time, and wait for a tenth of a second each."""
    looks = Looks(wait=0.1)
    trained(tmp_path, looks, gs.Every(seconds=0.3))
    assert len(looks.checkpoints) >= 3


def test_faults_cost_the_time_until_the_next_step(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    health = Health()
    health.begin(folder)
    health.enters("training")
    assert math.isnan(health.checkpoint_age)
    health.stepped()
    time.sleep(0.1)
    health.recovers(
        "frozen", "shard", 1, reason="shard 1 was silent", action="it is replaced", seconds_before=2.0
    )
    health.redoes(30)
    record = run_folder.read(folder)
    assert (record.state, record.standing.what) == ("recovering", "shard 1 was silent; it is replaced")
    assert record.standing.since is not None and record.standing.answers
    health.enters("training")
    assert run_folder.read(folder).state == "recovering"
    health.stepped()
    assert run_folder.read(folder).state == "running"
    (fault,) = run_log.faults(folder)
    assert (fault.kind, fault.role, fault.number, fault.redone_steps) == ("frozen", "shard", 1, 30)
    assert fault.seconds_lost >= 2.1
    health.save_failed("no space left")
    totals = health.totals()
    assert (totals["failed_saves"], totals["redone_steps"], totals["faults"]) == (1, 30, 2)
    run_folder.finish(folder, "done")


def recovering(folder: Path, seconds_before: float = 0.0) -> Health:
    """A coordinator that was restarted."""
    health = Health()
    health.recovers(
        "lost", "coordinator", reason="it was lost", action="restarted", seconds_before=seconds_before
    )
    health.begin(folder)
    health.enters("training")
    return health


def test_a_coordinator_lost_after_the_last_step_counts(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    health = recovering(folder, 2.0)
    assert [fault.open for fault in run_log.faults(folder)] == [True]
    assert run_log.totals(folder).faults == 1  # at once
    time.sleep(0.1)
    for phase, state in (("saving", "saving"), ("evaluating", "running")):
        health.enters(phase)
        assert run_folder.read(folder).state == state
    assert 2.1 <= health.totals()["seconds_lost"] < 60 and health.totals()["faults"] == 1
    (fault,) = run_log.faults(folder)
    assert not fault.open
    run_folder.finish(folder, "done")


def test_a_second_loss_before_the_next_step_counts_with_its_time_and_steps(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    recovering(folder, 2.0)
    time.sleep(0.2)  # then this one is lost too, just after a heartbeat
    health = recovering(folder, 0.01)
    health.redoes(30)  # a shard was lost, too
    health.redoes(0)  # and again
    health.stepped()
    found = run_log.faults(folder)
    assert [fault.role for fault in found] == ["coordinator", "coordinator", "shard", "shard"]
    assert [fault.redone_steps for fault in found] == [0, 0, 30, 0]
    totals = health.totals()
    assert (totals["faults"], totals["redone_steps"]) == (4, 30) and 2.2 <= totals["seconds_lost"] < 60
    health.stepped()
    assert health.totals()["seconds_lost"] == totals["seconds_lost"]
    run_folder.finish(folder, "done")


def test_a_run_that_fails_while_it_recovers_has_its_fault_counted(tmp_path: Path) -> None:
    class Fails(gs.Callback):
        def on_step(self, run: Run) -> None:
            run.parts.health.recovers("frozen", "worker", 3, reason="it was silent", action="it is replaced")
            time.sleep(0.1)
            raise RuntimeError("broken")

    data = gs.Dataset(GeneratedExamples(gs.ClickLog(examples=1000, days=1)))
    policy = gs.CheckpointPolicy(path=tmp_path / "runs")
    trainer = gs.Trainer(global_batch=100, checkpoint=policy, training=gs.TrainingSettings(shuffle=False))
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(gs.models.LR(data.schema), data, callbacks=[Fails()])
    (record,) = catalog.list_runs(tmp_path / "runs")
    totals = run_log.totals(record.folder)
    assert (record.state, totals.faults) == ("failed", 1) and 0.1 <= totals.seconds_lost < 60
    assert not run_log.faults(record.folder)[0].open


def test_a_frozen_run_that_was_taken_over_wakes_up_writes_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also its thread that saves: a checkpoint is due every second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ownership, "LAPSE_SECONDS", 3.0)
    Path("long.yaml").write_text(CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-m", "gearshift", "train", "long.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, process_identity.MACHINE: "elsewhere"},
    )
    try:
        until = time.monotonic() + 90
        while not list(Path("runs").glob("long*/checkpoints/step-*")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        folder = next(Path("runs").glob("long-*"))
        with pytest.raises(gs.UserError, match="still running on"):  # it is on another machine, and lives
            run_folder.claim(folder)
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(ownership, "LAPSE_SECONDS", 0.5)
        run_folder.claim(folder)
        run_folder.set_state(folder, "running")
        close = control_socket_server.serve(folder, Fake())
        before = contents(folder)
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 2
    assert f"was taken over by process {os.getpid()} on " in out.splitlines()[-1]
    assert contents(folder) == before
    assert control_socket.ask(folder, "status")["step"] == 812  # the new owner answers
    close()
    run_folder.finish(folder, "stopped")


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but the heartbeat; a folder that was half written when it froze may go."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".part" not in str(path)]
    return {str(path): path.read_bytes() for path in files if not path.is_symlink()}


def test_steps_that_a_lost_coordinator_had_made_are_counted_once(tmp_path: Path) -> None:
    """The new one knows the checkpoint alone; how far the run was is in its event log."""
    folder = run_folder.create(tmp_path, "shop")
    log = EventLog(folder, print)
    log.begin(Head("sync", {}, step=600))
    log(GradientArrived(0, 9, 1.0), [Apply(617, (Part(9),))])
    log.close()

    costs: list[int] = []

    def recovers(*_: object, redone_steps: int, **__: object) -> None:
        costs.append(redone_steps)

    def restarted(health: Health) -> str:
        said: list[str] = []
        training = SimpleNamespace(step=600)
        run = SimpleNamespace(resumed=Path("step-600"), training=training, notify=said.append, health=health)
        report_restart(cast(PreparedRun, run), folder, 3.0)
        health.begin(folder)
        return said[0]

    sentence = (
        "the coordinator was lost and restarted; the run continues from step-600: 17 steps are repeated"
    )
    (folder / "cluster.json").write_text('{"logs_before": 1}')  # all that was a session before, which ended
    assert (
        restarted(cast(Health, SimpleNamespace(recovers=recovers, begin=lambda folder: None)))
        == (sentence.partition(":")[0])
    )
    assert costs == [0]
    (folder / "cluster.json").unlink()
    assert restarted(Health()) == sentence
    second = Health()
    assert restarted(second) == sentence  # the first one was lost before it made a step
    second.enters("training")
    second.stepped()
    totals = second.totals()
    assert (totals["redone_steps"], totals["faults"]) == (17, 2)
    assert [fault.redone_steps for fault in run_log.faults(folder)] == [17, 0]
    run_folder.finish(folder, "done")
