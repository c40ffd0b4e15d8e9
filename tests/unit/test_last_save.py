"""A run whose last save fails keeps what it trained, and tries again: on a full, a read-only and a vanished folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gearshift as gs
from gearshift import retries, run_folder
from gearshift.checkpoint import Checkpoint
from gearshift.errors import UserError
from gearshift.retries import Retries, duration
from tests.small_disk import SmallDisk, small_disk

DATA = gs.read(gs.ClickLog(examples=2_000, days=1))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    monkeypatch.setattr(retries, "LONGEST_SECONDS", 0.2)
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.1)
    with small_disk(tmp_path / "disk") as made:
        yield made


class At(gs.Callback):
    """Something happens at a step."""

    def __init__(self, step: int, do: Callable[[gs.Run], object]) -> None:
        self._step, self._do = step, do

    def on_step(self, run: gs.Run) -> None:
        if run.training.step == self._step:
            self._do(run)


def started(disk: SmallDisk, harm: Callable[[gs.Run], object], retry_for: float = 60.0) -> gs.Run:
    """8 steps; saved after the third, harmed after the fifth."""
    policy = gs.CheckpointPolicy(gs.Every(steps=3), keep=1, path=disk.path, retry_for=retry_for)

    def saved_and_harmed(run: gs.Run) -> None:
        run.saver.wait()
        harm(run)

    trainer = gs.Trainer(global_batch=250, checkpoint=policy, callbacks=[At(5, saved_and_harmed)])
    return trainer.start(gs.models.DNN(DATA.schema, dim=2, hidden=[4]), DATA)


def until_retrying(run: gs.Run) -> str:
    """The sentence that the operator sees."""
    end = time.monotonic() + 60
    while not (said := [line for line in run.messages if "the save is retried" in line]):
        assert time.monotonic() < end and not run.finished, run.messages
        time.sleep(0.01)
    assert run.status().phase == "saving"
    return said[0]


def assert_saved(run: gs.Run) -> None:
    assert run.wait(30).report["global_steps"] == 8
    assert Checkpoint.open((run.folder / "checkpoints" / "last").resolve()).facts["step"] == 8
    assert run.status().phase == "done" and run_folder.read(run.folder).ended is not None
    assert any("of retries" in line for line in run.messages)


def test_a_full_disk(disk: SmallDisk) -> None:
    run = started(disk, lambda run: disk.fill())
    said = until_retrying(run)
    assert f"no space left on {run.folder / 'checkpoints'} (0 B free, step-3 takes " in said
    assert "checkpoint step-8 was not written, step-3 is intact" in said
    assert f"To give up: Ctrl-C or `gearshift stop {run.folder}`" in said
    assert not any("Training goes on" in line for line in run.messages if "step-8" in line)
    disk.free()
    assert_saved(run)


def test_a_read_only_disk(disk: SmallDisk) -> None:
    run = started(disk, lambda run: disk.remount("ro"))
    assert "step-3 is intact: Read-only file system" in until_retrying(run)
    disk.remount("rw")
    assert_saved(run)


def test_a_folder_that_is_gone_for_a_while(disk: SmallDisk) -> None:
    away = disk.path / "away"
    run = started(disk, lambda run: run.folder.rename(away))
    assert "the run's folder is gone" in until_retrying(run)
    assert not run.folder.exists(), "it is not made anew"
    away.rename(run.folder)
    assert_saved(run)


def test_it_is_given_up_by_a_stop(disk: SmallDisk) -> None:
    run = started(disk, lambda run: disk.fill())
    until_retrying(run)
    run.stop()
    with pytest.raises(
        UserError, match=r"step-8 was not written, step-3 is intact.*Retrying was stopped on request"
    ):
        run.wait(60)
    assert run.status().phase == "failed"
    disk.free()
    Checkpoint.open((run.folder / "checkpoints" / "last").resolve())


def test_a_run_that_was_stopped_keeps_trying_too(disk: SmallDisk) -> None:
    def fill_and_stop(run: gs.Run) -> None:
        disk.fill()
        run.stop()

    run = started(disk, fill_and_stop)
    until_retrying(run)
    disk.free()
    run.wait(30)
    assert run.status().phase == "stopped"
    assert Checkpoint.open((run.folder / "checkpoints" / "last").resolve()).facts["step"] == 5


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "no space left"), (0.3, "tried for 1 s")])
def test_it_ends_when_the_time_is_over(disk: SmallDisk, seconds: float, said: str) -> None:
    run = started(disk, lambda run: disk.fill(), retry_for=seconds)
    with pytest.raises(UserError, match=said):
        run.wait(60)


def test_it_is_tried_less_and_less_often_and_told_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    tried = Retries(3600.0, said.append)
    with pytest.raises(UserError, match=r"disk full. It was tried for 1 h \(checkpoint.retry_for\)"):
        for _ in range(1000):
            tried.failed("disk full")
            now[0] = tried._attempts.due
    assert 3600 <= now[0] < 3601 and 120 < tried._attempts.count < 130
    assert len(said) == 7 and duration(3600) == "1 h"
