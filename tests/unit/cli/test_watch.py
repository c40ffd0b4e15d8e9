"""`gearshift watch`: the output for a live run, and for one that is over."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gearshift.cli import app as cli
from gearshift.cli import watch
from gearshift.cli.progress import LoggedProgress
from gearshift.run import control_socket_server, process_identity
from gearshift.run import folder as run_folder
from tests.unit.run.test_control_socket import Fake


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def folder(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "progress", lambda: LoggedProgress(every=0.0))
    made = run_folder.create("runs", "shop")
    close = control_socket_server.serve(made, fake)
    yield made
    close()


def report(folder: Path) -> None:
    figures = {"auc": 0.71, "logloss": 0.4, "normalized_entropy": 0.9, "calibration": 1.0, "skipped_lines": 0}
    known = {"examples": 1000, "wall_seconds": 61.0, "examples_per_second": 500.0, "global_steps": 12}
    lost = {"discarded": 0, "discarded_by_reason": {}, "discarded_examples_by_worker": {}}
    rest = {"measured_on": "train", "baselines": {}, "test": None, "best_step": 12}
    (folder / run_folder.REPORT).write_text(json.dumps({**figures, **known, **lost, **rest}))


def test_a_live_run_is_shown_to_its_end(folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.messages += ["switch sync -> gba after step 40"]

    def end() -> None:
        time.sleep(1)
        fake.messages += ["valid AUC .71"]
        time.sleep(1)
        run_folder.finish(folder, "stopped")

    ending = threading.Thread(target=end)
    ending.start()
    assert cli.run(["watch"]) == 143
    ending.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == list(fake.header)
    told = [line.split(" ", 1)[1] for line in lines[2:-1]]
    notes = [line for line in told if not line.startswith("phase=")]
    assert notes == ["switch sync -> gba after step 40", "valid AUC .71"]
    assert (
        "phase=training step=812 examples=410000 total=1000000 examples_per_second=41000 loss=0.13" in told[1]
    )
    assert lines[-1].startswith(f"run {folder.name} was stopped and saved at ")
    assert lines[-1].endswith(f". Resume: gearshift train --resume {folder}")


def test_ctrl_c_leaves_the_run_alone(folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        threading.Timer(1.0, signal.raise_signal, (signal.SIGINT,)).start()
        assert cli.run(["watch", "last"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"{folder.name} keeps running; watch it again: gearshift watch " in capsys.readouterr().out
    assert not fake.stopping.is_set() and run_folder.read(folder).is_live


def test_a_run_that_is_over_is_told_in_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(folder)
    run_folder.finish(folder, "done")
    assert cli.run(["watch", "shop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"run {folder.name} finished at ")
    assert lines[1].startswith("done   1,000 examples in 1:01 (500 ex/s while training); 12 steps")
    run_folder.finish(folder, "failed", "loss became NaN at step 412")
    assert cli.run(["watch"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and ": loss became NaN at step 412. Resume: " in captured.err


def test_a_run_that_starts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, fake = run_folder.create("runs", "shop"), Fake()

    def begin() -> None:
        time.sleep(0.5)
        close = control_socket_server.serve(folder, fake)
        time.sleep(1)
        close()
        report(folder)
        run_folder.finish(folder, "done")

    beginning = threading.Thread(target=begin)
    beginning.start()
    assert cli.run(["watch"]) == 0
    beginning.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == fake.header[0] and lines[2].startswith("done   1,000 examples")


def test_a_run_of_another_machine_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(process_identity.MACHINE, "another")  # it is the watcher who is elsewhere
    assert cli.run(["watch"]) == 2
    assert "run `watch` there" in capsys.readouterr().err
