"""Rows that do not fit in memory cannot be written: the run stops at a checkpoint, and goes on elsewhere. And a folder
of rows that is deleted: the run ends at once.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import gearshift as gs
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.tier_figures import UNWRITTEN, WHY_UNWRITTEN
from gearshift.errors import UserError
from gearshift.run.folder import CONFIG
from gearshift.run.interrupts import resume_elsewhere_hint
from gearshift.run.local_run import Run
from gearshift.run.storage_watch import StorageWatch
from tests.small_disk import SmallDisk, small_disk

DATA = gs.read(gs.ClickLog(12_000))


class FillDisk(gs.Callback):
    """Fills the disk after a step, and waits until rows cannot be written."""

    def __init__(self, disk: SmallDisk, step: int) -> None:
        self.disk, self.step = disk, step

    def on_step(self, run: Run) -> None:
        if run.training.step != self.step:
            return
        self.disk.fill()
        (store,) = run.training.learner.server.stores
        store.pull(np.arange(1, 3001) << 40)  # rows leave memory for them, so that something must be written
        end = time.monotonic() + 60
        while store.tier.write_failure() is None and time.monotonic() < end:
            time.sleep(0.05)


def trainer(runs: Path, storage: Path, workers: int = 1) -> gs.Trainer:
    return gs.Trainer(
        global_batch=512,
        workers=gs.WorkerSettings(workers, memory="4MiB", storage=storage),
        checkpoint=gs.CheckpointPolicy(path=runs),
        training=gs.TrainingSettings(baseline=False),
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_stops_the_run_at_a_checkpoint(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=1024))
    model = gs.models.DeepFM(DATA.schema, dim=8, hidden=[16])
    with small_disk(tmp_path / "disk") as disk:
        run = trainer(tmp_path / "runs", disk.path, workers).start(model, DATA, callbacks=[FillDisk(disk, 8)])
        sentence = (
            r"^rows on disk: \S*/rows-\S* cannot be \w+: No space left on device\. Step \d+ is saved\. Make room .*"
            r'another folder: trainer\.fit\(.*, with gs\.WorkerSettings\(storage="/other/folder"\)$'
        )
        with pytest.raises(UserError, match=sentence):
            run.wait(120)
        assert any(line.endswith("device. The run stops at a checkpoint") for line in run.messages)
        assert gs.load(run.folder) is not None
        there = rf"^storage\.path: .*{disk.path}.*: storage\.path=/other/folder$"
        with pytest.raises(UserError, match=there):
            trainer(tmp_path / "runs", disk.path, workers).fit(model, DATA, resume=run.folder)
    resumed = trainer(tmp_path / "runs", tmp_path / "elsewhere", workers).fit(model, DATA, resume=run.folder)
    assert resumed.report["examples"] == 12_000 and resumed.report["global_steps"] == 24
    assert resumed.report["tier"]["cold_rows"] > 0


def test_the_command_that_resumes_elsewhere(tmp_path: Path) -> None:
    (tmp_path / CONFIG).touch()
    assert (
        resume_elsewhere_hint(tmp_path) == f"gearshift train --resume {tmp_path} storage.path=/other/folder"
    )


def test_a_shard_elsewhere_names_its_file() -> None:
    failure = "/ssd/rows-7/rows-3-1.gsr.part cannot be written: No space left on device"
    training = SimpleNamespace(
        baseline=SimpleNamespace(learner=None), learner=SimpleNamespace(server=SimpleNamespace(stores=()))
    )
    figures = {"worker-0": {}, "shard-1": {UNWRITTEN: 1.0, WHY_UNWRITTEN + failure: 1.0}}
    watch = StorageWatch(cast(Any, training), lambda: figures)
    assert watch.look() == f"rows on disk of shard 1: {failure}"
    assert watch.look() is None


class DeleteRows(gs.Callback):
    """Deletes the rows on disk after a step."""

    def __init__(self, rows: Path, step: int) -> None:
        self.rows, self.step = rows, step

    def on_step(self, run: Run) -> None:
        if run.training.step == self.step:
            (store,) = run.training.learner.server.stores
            store.tier.settle()
            self.rows.rename(self.rows.with_name("elsewhere"))


def test_deleted_rows_end_the_run_and_it_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save is not retried: the file will not come back."""
    monkeypatch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=1024))
    model, rows = gs.models.DeepFM(DATA.schema, dim=8, hidden=[16]), tmp_path / "rows"
    saving = gs.CheckpointPolicy(gs.Every(steps=4), path=tmp_path / "runs")
    ours = trainer(tmp_path / "runs", rows)
    ours.checkpoint = saving
    run = ours.start(model, DATA, callbacks=[DeleteRows(rows, 7)])
    with pytest.raises(
        UserError, match=r"^rows on disk: \S*gsr: No such file .* was deleted during the run\. Resume"
    ):
        run.wait(60)
    assert not any("is retried" in line for line in run.messages)
    assert ours.fit(model, DATA, resume=run.folder).report["examples"] == 12_000
