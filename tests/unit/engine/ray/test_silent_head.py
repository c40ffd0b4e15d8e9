"""Ray's calls block for minutes while its head is frozen. A run that is done must end all the same."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from gearshift.engine.ray.actors import coordinator as hubs
from gearshift.engine.ray.actors import nodes as machines
from gearshift.engine.ray.actors import start
from gearshift.engine.ray.actors.placement import ProcessPlacement, ProcessResources

PLAN = ProcessPlacement(
    "run", {role: ProcessResources(1.0) for role in ("coordinator", "shard", "worker")}, 1, 1, False
)


@pytest.fixture
def frozen_head(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever asks Ray's head waits until the test is over."""
    answer = threading.Event()
    for module in (hubs, start):
        monkeypatch.setattr(module, "end_members", lambda plan: answer.wait(250))
        monkeypatch.setattr(module, "END_SECONDS", 0.1)
    monkeypatch.setattr(start, "leave_place", lambda plan: answer.wait(250))
    monkeypatch.setattr(start.ray, "kill", lambda actor, no_restart: answer.wait(250))
    yield
    answer.set()


def test_work_that_does_not_finish_is_left_behind() -> None:
    released = threading.Event()
    assert machines.within(60, lambda: None)
    assert not machines.within(0.05, lambda: released.wait(250))
    released.set()


def test_work_that_fails_has_finished() -> None:
    assert machines.within(60, lambda: 1 / 0)


def test_a_hub_closes_while_the_head_is_frozen_and_says_so_once(frozen_head: None) -> None:
    sentences: list[str] = []
    hub = object.__new__(hubs.CoordinatorActor)
    hub._plan, hub._actors, hub._wanted, hub._head_is_silent = PLAN, {}, 3, False
    hub._seat = SimpleNamespace(tell=sentences.append)  # type: ignore[assignment]
    hub.close()
    hub.close()
    assert hub._wanted == 0
    assert [s for s in sentences if "Ray's head does not answer" in s] == sentences[:1]
    assert len(sentences) == 1


def test_a_starter_ends_a_run_while_the_head_is_frozen(frozen_head: None) -> None:
    start.end(object(), PLAN)  # returns
