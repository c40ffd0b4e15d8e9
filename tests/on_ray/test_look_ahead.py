"""On Ray, rows on disk are read before they are pulled: workers tell the shards the ids of their next leases."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gearshift as gs
from tests.on_ray.fixtures import ON_RAY

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
