"""A cluster's processes end with it, also when the leader of their session is gone; nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gearshift.engine.ray.end_session import end_session, processes_of
from gearshift.run import folder as run_folder
from gearshift.run import leftovers, process_identity, temporary_folders

SLEEP = "import time; time.sleep(120)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def start(folder: Path, *, stopped: bool = False) -> subprocess.Popen[bytes]:
    """As Ray's processes are started: with the cluster's token file in their environment."""
    environment = {**os.environ, "RAY_AUTH_TOKEN_PATH": f"{folder}/token"}
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env=environment, start_new_session=True)
    if stopped:
        process.send_signal(signal.SIGSTOP)
    return process


def test_processes_of_a_session_without_its_leader(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    mine, other = tmp_path / "gs-mine", tmp_path / "gs-mine2"
    mine.mkdir()
    other.mkdir()
    started += [start(mine), start(mine, stopped=True), start(other)]
    assert set(processes_of(mine)) == {process.pid for process in started[:2]}
    end_session(None, mine)
    assert [process.wait(10) for process in started[:2]] == [-signal.SIGKILL] * 2
    assert not mine.exists()
    assert other.exists() and started[2].poll() is None


def test_clean_ends_what_is_left_of_a_cluster_whose_leader_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    """A frozen process outlives its raylet, and the process that had started Ray."""
    monkeypatch.setattr(temporary_folders.tempfile, "tempdir", str(tmp_path))
    run = run_folder.create(tmp_path / "runs", "some")
    leader = subprocess.Popen([sys.executable, "-c", SLEEP])
    place = temporary_folders.make(temporary_folders.SOCKETS, run)
    temporary_folders.mark(place, run, leader=leader.pid)
    started.append(start(place, stopped=True))
    assert list(leftovers.find(end_session=end_session)) == []
    leader.kill()
    leader.wait()
    run_folder.finish(run, "failed", "its Ray died")
    monkeypatch.setattr(process_identity, "lives", lambda process: False)  # its starter, which is us, is gone
    (found,) = leftovers.find(end_session=end_session)
    assert found.path == place and "what is left of a Ray cluster" in found.what
    found.remove()
    assert started[0].wait(10) == -signal.SIGKILL and not place.exists()
    until = time.monotonic() + 10
    while processes_of(place):
        assert time.monotonic() < until
