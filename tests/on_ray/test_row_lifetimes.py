"""On Ray, shards admit and expire the same rows as one process, also after the number of shards has changed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gearshift as gs
from tests.on_ray.fixtures import ON_RAY
from tests.unit.trainer.test_row_lifetimes import SCHEMA, data, fit, rows

pytestmark = ON_RAY


def trained(
    path: Path,
    cluster: gs.ClusterSettings,
    shards: int,
    stop_at: int | None = None,
    resume: Path | None = None,
) -> gs.Result:
    trainer = gs.Trainer(
        global_batch=100,
        workers=gs.WorkerSettings(2, shards=shards, threads=1),
        checkpoint=gs.CheckpointPolicy(None, path=path),
        cluster=cluster,
        training=gs.TrainingSettings(baseline=False),
        optimizer=gs.OptimizerSettings(rows=gs.RowSettings(embeddings=gs.RowAdagrad(lr=0.1))),
    )
    model = gs.models.build("deepfm", SCHEMA, seed=5, dim=4, hidden=[8])
    run = trainer.start(model, data(), resume=resume)
    while stop_at is not None and run.status().step < stop_at and not run.finished:
        time.sleep(0.01)
    if stop_at is not None:
        run.stop()
    return run.wait()


def test_shards_have_the_rows_of_one_process(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    here = fit(tmp_path / "here", workers=2, strategy="sync")
    whole = trained(tmp_path / "whole", cluster, shards=2)
    assert rows(whole).keys() == rows(here).keys()
    assert whole.report["row_rules"] == here.report["row_rules"]


@pytest.mark.slow
def test_a_resume_on_more_shards_has_the_same_rows(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    whole = trained(tmp_path / "whole", cluster, shards=2)
    stopped = trained(tmp_path / "stopped", cluster, shards=2, stop_at=4)
    resumed = trained(tmp_path / "stopped", cluster, shards=3, resume=stopped.folder)
    assert rows(resumed) == rows(whole)
    assert resumed.report["row_rules"] == whole.report["row_rules"]
