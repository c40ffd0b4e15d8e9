"""On Ray, rows on disk are read before they are pulled: workers tell the shards the ids of their next leases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from gearshift.embedding.tier_figures import summary_of
from gearshift.engine.ray.launched_run import LaunchedRun
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Smooth
from tests.on_ray.test_runs import assert_exact, log_of, normed, state, trainer, until

pytestmark = ON_RAY
BATCH = 512


def trained(path: Path, cluster: gs.ClusterSettings, memory: int | None, data: gs.Dataset) -> gs.Result:
    trainer = gs.Trainer(
        global_batch=2 * BATCH,
        workers=gs.WorkerSettings(2, memory=memory, threads=1),
        checkpoint=gs.CheckpointPolicy(path=path),
        cluster=cluster,
        seed=3,
    )
    return trainer.fit(gs.models.LR(data.schema), data)


def test_most_rows_on_disk_are_in_memory_before_they_are_pulled(
    tmp_path: Path, cluster: gs.ClusterSettings
) -> None:
    data = gs.read(gs.ClickLog(examples=40_000, days=1))
    here = trained(tmp_path / "memory", cluster, None, data)
    disk = trained(tmp_path / "disk", cluster, 4 << 20, data)
    np.testing.assert_array_equal(here.predict(data.head(2000)), disk.predict(data.head(2000)))
    tier = disk.report["tier"]
    assert tier["misses"] and tier["prefetched"] > 1000, tier
    assert here.report["tier"] is None
    tables = tier["tables"].values()
    assert {name for table in tables for name in table["features"]} == {f.name for f in data.schema.fields}
    assert sum(table["lookups"] for table in tables) == tier["lookups"]
    assert sum(table["misses"] for table in tables) == tier["misses"]


@pytest.mark.slow
def test_workers_join_and_leave_while_rows_are_read_ahead(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accounts are exact, and rows are those of a run in memory, whose workers stay."""
    data = gs.read(gs.ClickLog(examples=40_000, days=2))
    settings = {"shuffle": False, "baseline": False}
    run = trainer(tmp_path / "disk", cluster=cluster, memory=3 << 20, **settings).start(normed(Smooth), data)
    assert isinstance(run, LaunchedRun)
    until(run, lambda: run.status().step >= 3)
    for workers, event, times in ((4, '"join"', 4), (1, '"lost"', 3), (2, '"join"', 5)):
        run.resize(workers)
        until(run, lambda event=event, times=times: log_of(run).count(event) >= times)
        step = run.status().step
        until(run, lambda step=step: run.status().step >= step + 3)
    summary = summary_of(run.figures().values())
    assert summary is not None
    tier = summary.counts
    assert min(tier.misses, tier.evicted, tier.prefetched) > 100, tier
    run.stop()
    run.wait(120)
    monkeypatch.setattr(Smooth, "pause", 0.0)
    ended = trainer(tmp_path / "disk", shards=1, **settings).fit(normed(Smooth), data, resume=run.folder)
    assert_exact(ended.folder, 40_000)
    assert ended.report["discarded"] == 0
    here = trainer(tmp_path / "memory", **settings).fit(normed(Smooth), data)
    expected, got = state(here.folder), state(ended.folder)
    for name in ("ids_U", "touches_U", "updates_U"):
        np.testing.assert_array_equal(got[name], expected[name], name)
    # More workers sum in another order, and Adagrad's first step has the size of the rate however small a gradient is.
    np.testing.assert_allclose(got["weights_UW"], expected["weights_UW"], rtol=0, atol=2e-3)
