"""A run on a cluster as its starter sees it, with stand-ins for Ray and the coordinator."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from gearshift.engine.ray import coordinator_watch, launched_run
from gearshift.engine.ray.cluster_settings import ConnectionSettings
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.engine.ray.outcome import LaunchedProcesses
from gearshift.engine.ray.shared_folder import SharedFolder
from gearshift.errors import DataWarning
from gearshift.run import folder as run_folder
from gearshift.run import interrupts
from gearshift.run.status import Status

STATUS = Status(1, 10, 100, 1.0, 10.0, 0.5, 0.5, None, "training")


class Coordinator:
    """Answers questions at once; `start` grows when it restarts."""

    def __init__(self) -> None:
        self.start, self.requests = 1, list[tuple[str, bool]]()
        self.extra: dict[str, Any] = {}
        self.watch = SimpleNamespace(remote=lambda seen, start: self.answer())
        self.ask = SimpleNamespace(remote=lambda what, give_up: self.requests.append((what, give_up)))

    def answer(self) -> dict[str, Any]:
        said = {"over": False, "error": None, "start": self.start, "messages": [], "status": STATUS}
        return said | self.extra


class LocalRay:
    alive = True

    def died(self) -> bool:
        return not self.alive

    def last_words(self) -> str:
        return "its raylet was killed by signal 9"

    def stop(self) -> None: ...


@pytest.fixture
def launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LaunchedRun, Coordinator, LocalRay]]:
    monkeypatch.setattr(coordinator_watch, "POLL_SECONDS", 0.0)
    folder = run_folder.create(tmp_path, "run")
    coordinator, local = Coordinator(), LocalRay()
    watchdog = SimpleNamespace(heard=lambda: None, silent=lambda: None)
    ray = SimpleNamespace(
        CoordinatorWatchdog=lambda *arguments: watchdog,
        answered=lambda question, seconds: True,
        answer=lambda question: question,
        end=lambda *arguments: None,
        leave=lambda: None,
    )
    token = run_folder.hand_over(folder)
    context: Any = SimpleNamespace(
        folder=SharedFolder(folder, token),
        connection=Connection("ipc", "", ConnectionSettings(patience=30.0)),
        local=local,
    )
    run = LaunchedRun(LaunchedProcesses(context, ray, coordinator, None), None, warns=True)
    yield run, coordinator, local
    if not run.finished:
        run._outcome.leave()  # or the tests' process would wait for it at its exit


def test_a_stop_is_one_request_to_each_start_of_the_coordinator(
    launched: tuple[LaunchedRun, Coordinator, LocalRay],
) -> None:
    """That a save that fails shall be given up is not said again: to the next coordinator it may succeed."""
    run, coordinator, _ = launched
    run.status()
    run.stop(give_up=True)
    for _ in range(5):
        run.status()
    assert coordinator.requests == [("stop", True)]
    coordinator.start = 2
    for _ in range(5):
        run.status()
    assert coordinator.requests == [("stop", True), ("stop", False)]
    run.stop()
    assert coordinator.requests[2:] == [("stop", False)]


def test_ctrl_c_asks_nothing_of_ray(launched: tuple[LaunchedRun, Coordinator, LocalRay]) -> None:
    """With a frozen head it would wait, and so would the user who wants to quit."""
    run, coordinator, _ = launched
    run.status()
    ray = run._processes.ray
    ray.answered = ray.answer = lambda *arguments: pytest.fail("a frozen head")
    left: list[str] = []

    def leave() -> NoReturn:
        left.append("quit")
        raise SystemExit

    handler = interrupts.Interrupts(run, lambda sentence: None, leave)
    handler(signal.SIGINT, None)
    with pytest.raises(SystemExit):
        handler(signal.SIGINT, None)
    assert coordinator.requests == [("stop", False)] and left == ["quit"]
    run._outcome.leave()


def test_a_run_that_has_ended_ends_its_cluster_and_is_done(
    launched: tuple[LaunchedRun, Coordinator, LocalRay],
) -> None:
    """Nobody asked while its cluster was still there: a notebook that waits for it later, or a frozen starter."""
    run, _, local = launched
    run_folder.finish(run.folder, "done")
    local.alive = False

    def end(*arguments: object) -> None:
        raise AssertionError("nothing is asked of a Ray that is gone: it would wait for minutes")

    run._processes.ray.end = end
    assert run.status().phase == "done"
    assert run_folder.read(run.folder).state == "done"


def test_a_run_whose_cluster_died_has_failed(launched: tuple[LaunchedRun, Coordinator, LocalRay]) -> None:
    run, _, local = launched
    local.alive = False
    assert run.status().phase == "failed"
    record = run_folder.read(run.folder)
    assert record.state == "failed"
    assert "the Ray cluster of this run died (its raylet was killed by signal 9)" in record.reason


def test_steps_of_too_few_gradients_are_a_warning_of_python_once(
    launched: tuple[LaunchedRun, Coordinator, LocalRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, coordinator, _ = launched
    monkeypatch.setattr(launched_run, "result_in", lambda folder, report, model: "the result")
    sentence = "vr_* had no effect in a step"
    coordinator.extra = {"messages": [sentence], "plain_warning": sentence}
    run.status()
    coordinator.start, coordinator.extra = 2, {"plain_warning": None, "over": True}  # it restarted since
    with pytest.warns(DataWarning, match=r"vr_\* had no effect in a step") as given:
        run.wait(20)
    assert len(given) == 1 and given[0].filename == __file__ and run.messages == [sentence]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.wait(20)
