"""Rows that do not fit in memory cannot be written: the run stops at a checkpoint, and goes on elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from gearshift.embedding.cold_tier import ColdTier
from gearshift.errors import UserError
from gearshift.run.local_run import Run
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
            r"rows that do not fit in memory cannot be written: .*No space left on device.*Step 8 is saved: "
        )
        with pytest.raises(UserError, match=sentence):
            run.wait(120)
        assert gs.load(run.folder) is not None
    resumed = trainer(tmp_path / "runs", tmp_path / "elsewhere", workers).fit(model, DATA, resume=run.folder)
    assert resumed.report["examples"] == 12_000 and resumed.report["global_steps"] == 24
    assert resumed.report["tier"]["cold_rows"] > 0
