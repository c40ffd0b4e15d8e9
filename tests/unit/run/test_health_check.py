"""The verdict on the health of a run: from its folder, and from what it reports while it is live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gearshift.run import control_socket_server
from gearshift.run import folder as run_folder
from gearshift.run.health_check import check_health
from gearshift.run.status import Status
from tests.unit.run.test_control_socket import Fake


class Stepping(Fake):
    """A run that made its last step `since_step` seconds ago."""

    since_step, phase = 1.0, "training"

    def status(self) -> Status:
        nan = float("nan")
        return Status(8, 400, 1_000, 1.0, 400.0, 0.13, nan, None, self.phase, self.since_step, 42.0)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, Stepping]]:
    folder, run = run_folder.create(tmp_path / "runs", "shop"), Stepping()
    run_folder.set_state(folder, "running")
    close = control_socket_server.serve(folder, run)
    yield folder, run
    close()


def test_a_run_that_makes_steps_is_healthy(live: tuple[Path, Stepping]) -> None:
    report = check_health(live[0])
    assert (report.health, report.why) == ("healthy", "")
    assert report.status is not None and report.as_json()["checkpoint_age"] == 42.0


@pytest.mark.parametrize(("phase", "health"), [("training", "stalled"), ("saving", "healthy")])
def test_only_a_run_that_should_make_steps_can_stall(
    live: tuple[Path, Stepping], phase: str, health: str
) -> None:
    folder, run = live
    run.since_step, run.phase = 400.0, phase
    report = check_health(folder)
    assert (report.health, report.why) == (health, "no step for 400 s" if health == "stalled" else "")
    assert check_health(folder, stalled_after=500).health == "healthy"


def test_a_run_that_has_lost_a_process_recovers_however_long_it_takes(live: tuple[Path, Stepping]) -> None:
    folder, run = live
    run.since_step = 400.0
    run_folder.set_state(folder, "recovering", "shard 1 was silent for 30 s; it is replaced")
    report = check_health(folder)
    assert (report.health, report.why) == ("recovering", "shard 1 was silent for 30 s; it is replaced")


@pytest.mark.parametrize(
    ("how", "health"), [("done", "healthy"), ("failed", "failed"), ("stopped", "stopped")]
)
def test_the_health_of_a_run_that_has_ended(live: tuple[Path, Stepping], how: Any, health: str) -> None:
    run_folder.finish(live[0], how, "no space left" if how == "failed" else None)
    report = check_health(live[0])
    assert (report.health, report.status) == (health, None)
    assert report.why == ("no space left" if how == "failed" else "")
