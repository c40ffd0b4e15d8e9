"""What every `RunHandle` must do, asked of a live run of at least two workers that trains until it is stopped."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import pytest

import gearshift as gs
from gearshift.errors import UserError
from gearshift.run.run_handle import RunHandle

METHODS = ("status", "last_status", "history", "switch", "resize", "checkpoint", "stop", "wait")
PROPERTIES = ("folder", "header", "messages", "finished")


def check_signatures(kind: type) -> None:
    """Names, kinds, defaults and types are those of the protocol."""
    for name in METHODS:
        assert inspect.signature(getattr(kind, name)) == inspect.signature(getattr(RunHandle, name)), name


def check_run(run: RunHandle) -> None:
    """From its first steps to its end."""
    check_what_it_tells(run)
    check_what_it_is_asked(run)
    check_its_end(run)


def check_what_it_tells(run: RunHandle) -> None:
    until(run, lambda: run.status().step >= 3)
    for name in PROPERTIES:
        assert getattr(run, name) is not None
    status = run.status()
    assert isinstance(status, gs.Status) and isinstance(run.last_status(), gs.Status)
    assert status.phase == "training" and not run.finished
    assert all(isinstance(sentence, str) for sentence in [*run.messages, *run.header])
    assert isinstance(run.history(), list)
    with pytest.raises(TimeoutError, match=f"run {run.folder.name} is not done after 0"):
        run.wait(0)


def check_what_it_is_asked(run: RunHandle) -> None:
    switch = run.switch("gba", reason="a slow worker", timeout=90.0, max_lag=4)
    assert isinstance(switch, gs.Switch)
    assert (switch.before, switch.strategy, switch.reason) == ("sync", "gba", "a slow worker")
    until(run, lambda: any("switch sync -> gba" in sentence for sentence in run.messages))
    with pytest.raises(UserError, match="nothing"):
        run.switch("nothing")
    run.resize(1, timeout=90.0)
    until(run, lambda: any("1 worker instead of 2" in sentence for sentence in run.messages))
    with pytest.raises(UserError, match="at least 1"):
        run.resize(0)
    before = set(run.folder.glob("checkpoints/step-*"))
    run.checkpoint()
    until(run, lambda: bool(set(run.folder.glob("checkpoints/step-*")) - before))


def check_its_end(run: RunHandle) -> None:
    run.stop(give_up=False)
    result = run.wait(120)
    assert isinstance(result, gs.Result) and result.folder == run.folder and run.finished
    assert repr(result).startswith("Result(") and str(run.folder) in repr(result)
    assert isinstance(result.report, dict) and result.facts["step"] >= 3
    assert run.wait(0).folder == run.folder, "whoever waits again is answered at once"
    for request in (lambda: run.switch("sync"), lambda: run.resize(2)):
        with pytest.raises(UserError, match="needs a live run"):
            request()


def until(run: RunHandle, holds: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end and not run.finished, run.messages
        time.sleep(0.05)
