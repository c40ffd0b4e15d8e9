"""A run whose last checkpoint is damaged says which one to resume from, after it has read that one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.embedding.cold_tier import ColdTier
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import DamagedCheckpoint
from gearshift.run.folder import CONFIG
from gearshift.run.intact import naming_intact, newest_intact

DATA = gs.read(gs.ClickLog(8000))


def fit(path: Path, **more: object) -> gs.Result:
    trainer = gs.Trainer(
        global_batch=512,
        workers=gs.WorkerSettings(memory="4MiB", storage=path / "rows"),
        checkpoint=gs.CheckpointPolicy(gs.Every(steps=1), keep=40, path=path),
        training=gs.TrainingSettings(baseline=False),
        epochs=2 if more else 1,
    )
    return trainer.fit(gs.models.DeepFM(DATA.schema, dim=4, hidden=[8]), DATA, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=1024))
        return fit(tmp_path_factory.mktemp("runs")).folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, in which checkpoints share files too."""
    folder = tmp_path / trained.name
    shutil.copytree(trained, folder, copy_function=link, symlinks=True)
    return folder


def link(source: str, target: str) -> None:
    if source.endswith(".gsr"):
        Path(target).hardlink_to(source)
    else:
        shutil.copy2(source, target)


def files_of(run: Path) -> dict[str, set[int]]:
    """The inodes of the row files of each checkpoint, oldest first."""
    steps = sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return {path.name: {file.stat().st_ino for file in path.glob("*.gsr")} for path in steps}


def damage(run: Path, step: str, inodes: set[int]) -> Path:
    """Flips a bit in the middle of one of these files, for all checkpoints that share it."""
    found = [file for file in (run / "checkpoints" / step).glob("*.gsr") if file.stat().st_ino in inodes]
    file = max(found, key=lambda file: file.stat().st_size)
    content, inode = bytearray(file.read_bytes()), file.stat().st_ino
    content[5000 if len(content) > 12_000 else 100] ^= 1
    for shared in (run / "checkpoints").glob("step-*/*.gsr"):
        if shared.stat().st_ino == inode:
            shared.unlink()
            shared.write_bytes(content)
    return file


def test_the_newest_checkpoint_without_the_file_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_step = files_of(run)
    *_, before, last = of_step
    file = damage(run, last, of_step[last] - of_step[before])
    command = rf'trainer\.fit\(model, train, valid, resume="{run}@{before}"\)'
    checkpoint = run / "checkpoints" / last
    told = rf"^checkpoint {checkpoint}: {file.name} is damaged: [\w ]+\. The newest intact one is {before}: "
    with pytest.raises(UserError, match=f"{told}{command}$"):
        fit(run.parent, resume=run)
    (run / CONFIG).touch()
    with pytest.raises(UserError, match=f"gearshift train --resume {run}@{before}$"):
        fit(run.parent, resume=run)
    (run / CONFIG).unlink()
    monkeypatch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=1024))
    assert fit(run.parent, resume=f"{run}@{before}").report["examples"] == 16_000


def test_checkpoints_that_share_a_damaged_file_are_left_out(run: Path) -> None:
    of_step = files_of(run)
    last = list(of_step)[-1]
    shared = of_step[last] & set().union(*(of_step[step] for step in of_step if step != last))
    assert shared, "checkpoints of a run with rows on disk share files"
    file = damage(run, last, shared)
    spoiled = {path.name for path in (run / "checkpoints").glob("step-*") if _has_copy(path, file)}
    assert len(spoiled) > 1
    intact = [step for step in of_step if step not in spoiled]
    found = newest_intact(run / "checkpoints" / last)
    assert (found and found.name) == (intact[-1] if intact else None)


def _has_copy(checkpoint: Path, file: Path) -> bool:
    return any(other.read_bytes() == file.read_bytes() for other in checkpoint.glob("*.gsr"))


def test_a_missing_file_is_named_and_that_nothing_else_is_intact(run: Path) -> None:
    *others, last = files_of(run)
    (run / "checkpoints" / last / "dense.safetensors").unlink()
    for other in others:
        (run / "checkpoints" / other / "manifest.json").write_text("{}")
    told = (
        rf"checkpoint .*{last}: dense\.safetensors is missing\. No other checkpoint of run {run} is intact$"
    )
    with pytest.raises(UserError, match=told):
        fit(run.parent, resume=run)


def test_a_run_that_branches_off_names_a_checkpoint_of_the_other_run(run: Path, tmp_path: Path) -> None:
    """It has taken over the damaged one alone."""
    *_, before, last = files_of(run)
    taken_over, origin = tmp_path / "new" / "checkpoints" / last, run / "checkpoints" / last
    with (
        pytest.raises(UserError, match=rf"^checkpoint {origin}: it is damaged\. The newest .*{run}@{before}"),
        naming_intact(origin),
    ):
        raise DamagedCheckpoint(taken_over, "it is damaged")
