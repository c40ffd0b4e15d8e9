"""The coordinator's clock: time in which it did not run is nobody's silence."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from gearshift.engine.wire.driver import CoordinatorRunner


class Heard:
    """A role that only notes what time it is told."""

    patience = 4.0
    over = False

    def __init__(self) -> None:
        self.times: list[float] = []

    def handle(self, message: object, now: float) -> None:
        self.times.append(now)

    def tick(self, now: float) -> None:
        self.times.append(now)


def test_a_process_that_was_frozen_does_not_count_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    role = Heard()
    runner = CoordinatorRunner(role, 0.25)  # type: ignore[arg-type]
    for passed, do in (
        (1.0, runner.tick),
        (1.5, runner.tick),
        (60.0, lambda: runner.handle("late")),
        (1.0, runner.tick),
    ):
        clock.now += passed
        do()
    assert role.times == [1.0, 2.5, 2.5, 3.5]
