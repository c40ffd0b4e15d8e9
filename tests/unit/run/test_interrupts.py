"""Ctrl-C and the end of the interpreter, with real signals: the run is stopped, saved, and can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.run import catalog
from gearshift.run import folder as run_folder

PROGRAM = """
import os, signal, sys, threading, time
import gearshift as gs

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

data = gs.read(gs.ClickLog(20_000))
trainer = gs.Trainer(global_batch=512, epochs=1000, checkpoint=gs.CheckpointPolicy(None, path="runs"))
model = gs.models.DNN(data.schema, dim=8, hidden=[32])

class AtStep(gs.Callback):
    def __init__(self, step, do):
        self.step, self.do = step, do

    def on_step(self, run):
        if run.status().step == self.step:
            self.do()

callbacks = []

def after(step, do):
    callbacks[:] = [AtStep(step, do)]

def ctrl_c(times=1):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)

def fit():
    trainer.fit(model, data, callbacks=callbacks)

def live():
    reached = threading.Event()
    after(3, reached.set)
    run = trainer.start(model, data, callbacks=callbacks)
    reached.wait(60)
    return run
"""


def program(folder: Path, ending: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that ends so."""
    command = [sys.executable, "-c", f"{PROGRAM}\n{ending}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def only_run(folder: Path) -> run_folder.RunRecord:
    (record,) = catalog.list_runs(folder / "runs")
    return record


@pytest.mark.parametrize(
    ("ending", "code", "sentence"),
    [
        ("run = live(); sys.exit(3)", 3, "was stopped and saved at step "),
        pytest.param(
            "run = live(); raise OSError('no luck')",
            1,
            "was stopped and saved at step ",
            marks=pytest.mark.slow,
        ),
        (
            "after(3, ctrl_c); fit()",
            -signal.SIGINT,
            "KeyboardInterrupt: run runs/run-",
        ),
    ],
)
def test_a_program_that_ends_leaves_a_stopped_run(
    tmp_path: Path, ending: str, code: int, sentence: str
) -> None:
    done = program(tmp_path, ending)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr and "terminate called" not in done.stderr
    record = only_run(tmp_path)
    assert record.state == "stopped"
    assert f'Resume: trainer.fit(model, train, valid, resume="runs/{record.name}")' in done.stderr
    assert (record.folder / "checkpoints" / "last" / "manifest.json").is_file()


def test_a_second_ctrl_c_quits_at_once(tmp_path: Path) -> None:
    """The callback holds the step until both signals came: nothing can be saved in between."""
    done = program(
        tmp_path,
        "after(3, lambda: (ctrl_c(2), time.sleep(60))); fit()",
    )
    assert done.returncode == 130 and "its last steps may not be saved" in done.stderr, done.stderr
    assert only_run(tmp_path).state == "failed"


@pytest.fixture
def ctrl_c(request: pytest.FixtureRequest) -> Iterator[gs.Callback]:
    """Sends SIGINT to this process at step 3, and holds the run there for a while."""

    class CtrlC(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == 3:
                time.sleep(0.3)  # until somebody waits
                os.kill(os.getpid(), signal.SIGINT)
                run._stop.wait(2.0)

    before = signal.signal(signal.SIGINT, getattr(request, "param", signal.default_int_handler))
    yield CtrlC()
    signal.signal(signal.SIGINT, before)


def own_handler(number: int, _: object) -> None:
    raise KeyboardInterrupt


def trainer(path: Path, epochs: int = 2) -> gs.Trainer:
    return gs.Trainer(global_batch=100, epochs=epochs, checkpoint=gs.CheckpointPolicy(None, path=path))


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, own_handler], indirect=True)
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_an_interrupted_run_resumes_to_the_same_result(
    tmp_path: Path, ctrl_c: gs.Callback, timeout: float | None
) -> None:
    data = gs.read(make_batch(PLAIN, 2000), PLAIN)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8])
    handler, threads = signal.getsignal(signal.SIGINT), set(threading.enumerate())
    run = trainer(tmp_path).start(model, data, callbacks=[ctrl_c])
    with pytest.raises(KeyboardInterrupt, match=r"was stopped and saved at step [34]\. Resume: trainer\.fit"):
        run.wait(timeout)
    assert run.finished and run.status().phase == "stopped"
    assert signal.getsignal(signal.SIGINT) is handler
    left = set(threading.enumerate()) - threads
    assert not [t for t in left if t.name.startswith("gearshift") and t.name != "gearshift-heartbeat"]
    resumed = trainer(tmp_path).fit(model, data, resume=run.folder)
    whole = trainer(tmp_path / "whole").fit(gs.models.DeepFM(PLAIN, dim=4, hidden=[8]), data)
    assert torch.equal(resumed.learner.worker.dense.flat, whole.learner.worker.dense.flat)


def test_a_run_that_is_done_when_ctrl_c_comes_is_done(tmp_path: Path, ctrl_c: gs.Callback) -> None:
    class AtTheEnd(gs.Callback):
        def on_checkpoint(self, run: gs.Run, path: Path) -> None:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)  # the training is over, the last step saved

    data = gs.read(make_batch(PLAIN, 200), PLAIN)
    run = trainer(tmp_path, epochs=1).start(gs.models.LR(PLAIN), data, data, callbacks=[AtTheEnd()])
    with pytest.raises(KeyboardInterrupt, match=r"was done already; its model: gs\.load"):
        run.wait()
    assert run_folder.read(run.folder).state == "done" and run.wait().report["measured_on"] == "valid"


def test_ctrl_c_leaves_a_run_of_another_process_alone(tmp_path: Path, ctrl_c: gs.Callback) -> None:
    data = gs.read(make_batch(PLAIN, 2000), PLAIN)
    run = trainer(tmp_path, epochs=10_000).start(gs.models.LR(PLAIN), data, callbacks=[ctrl_c])
    with pytest.raises(KeyboardInterrupt, match=r"continues in its own process; stop it: gs\.attach"):
        gs.attach(run.folder).wait(60)
    assert not run.finished
    run.stop()
    run.wait(60)
