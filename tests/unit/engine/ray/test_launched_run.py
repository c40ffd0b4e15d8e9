"""A run on a cluster as its starter sees it, with stand-ins for Ray and the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gearshift.engine.ray import launch
from gearshift.engine.ray.launch import LaunchedRun
from gearshift.run import folder as run_folder
from gearshift.run.control import Status

STATUS = Status(1, 10, 100, 1.0, 10.0, 0.5, 0.5, None, "training")


class Coordinator:
    """Answers questions at once; `start` grows when it restarts."""

    def __init__(self) -> None:
        self.start, self.requests = 1, list[str]()
        self.watch = SimpleNamespace(remote=lambda seen, start: self.answer())
        self.ask = SimpleNamespace(remote=self.requests.append)

    def answer(self) -> dict[str, Any]:
        return {"over": False, "error": None, "start": self.start, "messages": [], "status": STATUS}


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
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.0)
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
        folder=folder, patience=30.0, local=local, token=token, check_not_taken=lambda: None
    )
    run = LaunchedRun(context, coordinator, None, ray, None)
    yield run, coordinator, local
    if not run.finished:
        run._leave()  # or the tests' process would wait for it at its exit


def test_a_stop_is_one_request_to_each_start_of_the_coordinator(
    launched: tuple[LaunchedRun, Coordinator, LocalRay],
) -> None:
    """A repeated stop means that a last save that fails shall be given up: one Ctrl-C must not mean that."""
    run, coordinator, _ = launched
    run.status()
    run.stop()
    for _ in range(5):
        run.status()
    assert coordinator.requests == ["stop"]
    coordinator.start = 2
    for _ in range(5):
        run.status()
    assert coordinator.requests == ["stop", "stop"]
    run.stop()
    assert len(coordinator.requests) == 3


def test_a_run_that_has_ended_ends_its_cluster_and_is_done(
    launched: tuple[LaunchedRun, Coordinator, LocalRay],
) -> None:
    """Nobody asked while its cluster was still there: a notebook that waits for it later, or a frozen starter."""
    run, _, local = launched
    run_folder.finish(run.folder, "done")
    local.alive = False

    def end(*arguments: object) -> None:
        raise AssertionError("nothing is asked of a Ray that is gone: it would wait for minutes")

    run._ray.end = end
    assert run.status().phase == "done"
    assert run_folder.read(run.folder).state == "done"


def test_a_run_whose_cluster_died_has_failed(launched: tuple[LaunchedRun, Coordinator, LocalRay]) -> None:
    run, _, local = launched
    local.alive = False
    assert run.status().phase == "failed"
    record = run_folder.read(run.folder)
    assert record.state == "failed"
    assert "the Ray cluster of this run died (its raylet was killed by signal 9)" in record.reason
