"""Ray's calls block for minutes while its head is frozen. A run that is done must end all the same."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from gearshift.engine.ray.actors import nodes as machines
from gearshift.engine.ray.actors import start, supervisor
from gearshift.engine.ray.actors.placement import ProcessPlacement, ProcessResources
from gearshift.engine.ray.actors.process_table import ProcessTable

PLAN = ProcessPlacement(
    "run", {role: ProcessResources(1.0) for role in ("coordinator", "shard", "worker")}, 1, 1, False
)


@pytest.fixture
def frozen_head(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever asks Ray's head waits until the test is over."""
    answer = threading.Event()
    for module in (supervisor, start):
        monkeypatch.setattr(module, "end_members", lambda plan: answer.wait(250))
        monkeypatch.setattr(module, "END_SECONDS", 0.1)
    monkeypatch.setattr(start, "leave_place", lambda plan: answer.wait(250))
    monkeypatch.setattr(start.ray, "kill", lambda actor, no_restart: answer.wait(250))
    yield
    answer.set()
    for thread in threading.enumerate():  # without the stand-ins they would start a real Ray in this process
        if thread.name == "gearshift-ray-call":
            thread.join(30)


def test_work_that_does_not_finish_is_left_behind() -> None:
    released = threading.Event()
    assert machines.within(60, lambda: None)
    assert not machines.within(0.05, lambda: released.wait(250))
    released.set()


def test_work_that_fails_has_finished() -> None:
    assert machines.within(60, lambda: 1 / 0)


@pytest.mark.parametrize(
    ("local", "left"),
    [(object(), "end with its cluster"), (None, "are ended when it answers again, or end with the cluster")],
)
def test_a_hub_closes_while_the_head_is_frozen_and_says_so_once(
    frozen_head: None, local: object, left: str
) -> None:
    """A cluster that others started does not end with the run."""
    sentences: list[str] = []
    context: Any = SimpleNamespace(local=local)
    membership: Any = SimpleNamespace(notify=sentences.append)
    coordinator = supervisor.Supervisor(PLAN, {}, context, ProcessTable(30.0, 0, {}), membership)
    coordinator._wanted = 3
    coordinator.close()
    coordinator.close()
    assert coordinator._wanted == 0
    assert sentences == [f"Ray's head does not answer; processes of this run that are left {left}"]


def test_a_starter_ends_a_run_while_the_head_is_frozen(frozen_head: None) -> None:
    start.end(object(), PLAN)  # returns
