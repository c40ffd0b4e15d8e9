"""On Ray, rows on disk are removed when the run ends, and what is wrong with them is said in full."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.errors import UserError
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Smooth
from tests.on_ray.test_runs import normed, trainer, until
from tests.small_disk import small_disk

pytestmark = ON_RAY
DATA = gs.read(gs.ClickLog(examples=40_000, days=2))
STOPPABLE = gs.CheckpointPolicy(gs.Every(steps=4))


def started(
    path: Path, rows: Path, cluster: gs.ClusterSettings, resume: Path | str | None = None
) -> LaunchedRun:
    ours = trainer(
        path,
        cluster=cluster,
        memory=3 << 20,
        storage=rows,
        shuffle=False,
        baseline=False,
        checkpoint=replace(STOPPABLE, path=path),
    )
    run = ours.start(normed(Smooth), DATA, resume=resume)
    assert isinstance(run, LaunchedRun)
    return run


def with_rows_on_disk(run: LaunchedRun, rows: Path) -> None:
    until(run, lambda: run.status().step >= 5 and len(list(rows.glob("rows-*/rows-*.gsr"))) > 2)


@pytest.mark.slow
def test_nothing_is_left_of_rows_when_a_run_stops_and_when_it_ends(
    tmp_path: Path, cluster: gs.ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows"
    run = started(tmp_path / "runs", rows, cluster)
    with_rows_on_disk(run, rows)
    run.stop()
    run.wait(120)
    assert not list(rows.iterdir())
    monkeypatch.setattr(Smooth, "pause", 0.0)
    started(tmp_path / "runs", rows, cluster, run.folder).wait(120)
    assert not list(rows.iterdir())


def test_a_killed_shard_leaves_its_rows_to_the_next_one(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    rows = tmp_path / "rows"
    run = started(tmp_path / "runs", rows, cluster)
    with_rows_on_disk(run, rows)
    os.kill(run.processes()[To("shard", 1)][0], signal.SIGKILL)
    until(run, lambda: any(line.startswith("the run continues from") for line in run.messages))
    with_rows_on_disk(run, rows)
    run.stop()
    run.wait(120)
    assert not list(rows.iterdir())


def test_a_full_disk_is_named_with_its_file_and_warned_of_once(
    tmp_path: Path, cluster: gs.ClusterSettings
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run = started(tmp_path / "runs", disk.path, cluster)
        with_rows_on_disk(run, disk.path)
        disk.fill()
        told = rf"^rows on disk of shard \d: {disk.path}/\S* cannot be \w+: No space left .* Step \d+ is saved\. "
        with pytest.raises(UserError, match=told):
            run.wait(120)
        warnings = [line for line in run.messages if "is on a file system in memory" in line]
        assert len(warnings) == 1, run.messages


@pytest.mark.slow
def test_deleted_rows_end_the_run(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    rows = tmp_path / "rows"
    run = started(tmp_path / "runs", rows, cluster)
    with_rows_on_disk(run, rows)
    rows.rename(tmp_path / "elsewhere")
    with pytest.raises(
        UserError, match=r"shard \d failed: rows on disk: \S*: No such file .* deleted during the run"
    ):
        run.wait(120)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_with_one_that_is_intact(
    tmp_path: Path, cluster: gs.ClusterSettings
) -> None:
    run = started(tmp_path / "runs", tmp_path / "rows", cluster)
    with_rows_on_disk(run, tmp_path / "rows")
    run.stop()
    run.wait(120)
    *_, intact, last = sorted(
        (run.folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:])
    )
    theirs = {file.stat().st_ino for file in intact.glob("*.gsr")}
    file = next(file for file in last.glob("rows0-s1-*.gsr") if file.stat().st_ino not in theirs)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.unlink()
    file.write_bytes(content)
    told = rf"shard 1 failed: checkpoint {last}: {file.name} is damaged: .* The newest intact one is {intact.name}: "
    with pytest.raises(UserError, match=rf'{told}.*resume="{run.folder}@{intact.name}"'):
        started(tmp_path / "runs", tmp_path / "rows", cluster, run.folder).wait(120)
    assert not list((tmp_path / "rows").iterdir())
