"""A run whose last save fails keeps what it trained, and tries again: on a full, a read-only and a vanished folder."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

import gearshift as gs
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import folder as run_folder
from gearshift.run import interrupts
from gearshift.run import retry as retries
from gearshift.run.retry import Retries, duration
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
        run.parts.saving.saver.wait()
        harm(run)

    trainer = gs.Trainer(global_batch=250, checkpoint=policy)
    model, harming = gs.models.DNN(DATA.schema, dim=2, hidden=[4]), At(5, saved_and_harmed)
    return trainer.start(model, DATA, callbacks=[harming])


def until_retrying(run: gs.Run, stake: str = retries.IN_MEMORY) -> str:
    """The sentence that the operator sees."""
    end = time.monotonic() + 60
    while not (said := [line for line in run.messages if f"{stake}, so the save is retried" in line]):
        assert time.monotonic() < end and not run.finished, run.messages
        time.sleep(0.01)
    assert run.status().phase == ("saving" if stake == retries.IN_MEMORY else "evaluating")
    assert run.status().save_retried
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
    assert not any("Training continues" in line for line in run.messages if "step-8" in line)
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


def test_it_is_given_up_by_a_stop_that_says_so(disk: SmallDisk) -> None:
    run = started(disk, lambda run: disk.fill())
    until_retrying(run)
    run.stop()  # does not
    time.sleep(1.0)
    assert run.status().save_retried
    run.stop(give_up=True)
    sentence = (
        r"step-8 was not written, step-3 is intact.*Retrying was stopped on request: step-3 is kept, steps 4 to 8 "
        rf'are lost\. Resume: trainer\.fit\(.*resume="{run.folder}"\)$'
    )
    with pytest.raises(UserError, match=sentence):
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


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_on_the_command_line_says_what_is_kept_and_what_is_lost(disk: SmallDisk) -> None:
    run, said = started(disk, lambda run: disk.fill()), list[str]()
    (run.folder / run_folder.CONFIG).touch()  # it came from there
    until_retrying(run)
    with interrupts.heard(run, said.append) as signals:
        ctrl_c()
        with pytest.raises(UserError, match="steps 4 to 8 are lost"):
            run.wait(60)
    assert signals == [signal.SIGINT]
    assert said == [
        "Giving up the failing save: step-3 is kept, steps 4 to 8 are lost. Resume: gearshift train --resume "
        f"{run.folder} (Ctrl-C again quits at once)"
    ]
    assert run_folder.read(run.folder).state == "failed"


def test_one_ctrl_c_stops_and_another_gives_up_the_save_that_fails(disk: SmallDisk) -> None:
    """The first one promised to save; that it cannot was not known then. From Python, with a real signal each."""
    at_step_5, go_on = threading.Event(), threading.Event()

    def fill_and_hold(run: gs.Run) -> None:
        disk.fill()
        at_step_5.set()
        go_on.wait(30)

    run, said = started(disk, fill_and_hold), list[str]()
    with interrupts.heard(run, said.append):
        assert at_step_5.wait(30)
        ctrl_c()
        go_on.set()
        until_retrying(run)
        ctrl_c()
        with pytest.raises(UserError, match="step-3 is kept, steps 4 to 5 are lost"):
            run.wait(60)
    assert [sentence.partition(":")[0] for sentence in said] == [
        interrupts.stopping(signal.SIGINT),
        "Giving up the failing save",
    ]


def test_ctrl_c_while_the_report_cannot_be_written_keeps_all_steps(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    run = started(
        disk, lambda run: monkeypatch.setattr("gearshift.run.final_result.run_folder.write_json", full)
    )
    assert "report.json was not written" in until_retrying(run, "The run cannot continue without it")
    run.stop(give_up=True)
    with pytest.raises(
        UserError, match=r"all 8 steps are kept, in step-8; files written later, such as the report, are lost"
    ):
        run.wait(60)


def test_only_a_user_is_told_of_ctrl_c(tmp_path: Path) -> None:
    """A scheduler that ends the run has no keyboard."""
    assert interrupts.stopping(signal.SIGTERM) == "Stopping after this step ..."
    assert "Ctrl-C again" in interrupts.stopping(signal.SIGINT)
    assert "Ctrl-C" not in interrupts.giving_up(tmp_path, 8, signal.SIGTERM)


class Quit(Exception):
    """Stands in for the end of the process."""


@pytest.mark.parametrize(
    ("retried", "expected"),
    [
        ([False, False], ["stop", "quit"]),
        ([True, True], ["give up", "quit"]),
        ([True, False], ["give up", "quit"]),
        ([False, True, True], ["stop", "give up", "quit"]),
        ([False, True, False], ["stop", "give up", "quit"]),
    ],
)
def test_the_signal_after_the_one_that_gives_up_quits(
    tmp_path: Path, retried: list[bool], expected: list[str]
) -> None:
    now, did = [False], list[str]()
    run = SimpleNamespace(
        folder=tmp_path,
        last_status=lambda: SimpleNamespace(step=8, save_retried=now[0]),
        stop=lambda give_up: did.append("give up" if give_up else "stop"),
    )

    def leave() -> NoReturn:
        did.append("quit")
        raise Quit

    handler = interrupts.Interrupts(run, lambda sentence: None, leave)
    for now[0] in retried:
        with suppress(Quit):
            handler(signal.SIGINT, None)
    assert did == expected


def test_a_ctrl_c_that_said_it_would_stop_gives_up_nothing(disk: SmallDisk) -> None:
    """The save begins to fail between the word and the deed."""
    run = started(disk, lambda run: disk.fill())
    told: list[str] = []

    def say(sentence: str) -> None:
        until_retrying(run)
        told.append(sentence)

    before = replace(run.status(), save_retried=False)
    asked = SimpleNamespace(folder=run.folder, last_status=lambda: before, stop=run.stop)
    interrupts.Interrupts(asked, say, lambda: pytest.fail("quit"))(signal.SIGINT, None)
    assert told == [interrupts.stopping(signal.SIGINT)]
    disk.free()
    run.wait(30)
    assert Checkpoint.open((run.folder / "checkpoints" / "last").resolve()).facts["step"] == 8
