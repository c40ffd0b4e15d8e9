"""A start of the run's own Ray that fails half way leaves no process and no folder: real processes, no real Ray."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from gearshift.engine.ray import launch
from gearshift.engine.ray import local_cluster as local_ray
from gearshift.engine.ray.cluster_settings import ClusterSettings
from gearshift.engine.ray.end_session import processes_of
from gearshift.engine.ray.local_cluster import LocalRay
from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import temporary_folders

# As `ray start --block`: a head that listens, and a child that leaves its process group as Ray's workers do.
STAND_IN = """#!{python}
import os, socket, subprocess, sys, time
assert sys.argv[1:3] == ["-m", "ray.scripts.scripts"]
subprocess.Popen([{python!r}, "-c", "import os, time; os.setpgid(0, 0); time.sleep(600)"])
port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port="))
with socket.create_server(("127.0.0.1", port)):
    if os.environ.get("STAND_IN_STARTS"):
        print("Ray runtime started", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made. Whatever was started there must be gone at the end."""
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(local_ray, "sys", SimpleNamespace(executable=str(program), modules={}))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made: list[LocalRay] = []
    real = LocalRay.stop

    def stop(local: LocalRay) -> None:
        assert len(processes_of(Path(local.folder))) == 2, "the processes that are to be ended"
        made.append(local)
        real(local)

    monkeypatch.setattr(LocalRay, "stop", stop)
    yield place
    assert made and not any(processes_of(Path(local.folder)) for local in made)
    assert not list(place.iterdir())


def both_are_there(local: LocalRay) -> bool:
    return len(processes_of(Path(local.folder))) == 2


def raises(error: BaseException) -> Callable[..., NoReturn]:
    def do(*_: object, **__: object) -> NoReturn:
        raise error

    return do


def test_ray_that_does_not_come_up_in_time(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ray, "START_SECONDS", 3.0)
    with pytest.raises(UserError, match="Ray did not start on this machine"):
        LocalRay.start(1)


def test_ctrl_c_while_ray_starts(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(local: LocalRay) -> bool:
        if both_are_there(local):
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(LocalRay, "_answers", answers)
    with pytest.raises(KeyboardInterrupt):
        LocalRay.start(1)


def test_a_folder_that_cannot_be_marked(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mark(folder: Path, run: Path, leader: int) -> None:
        while not both_are_there(LocalRay(str(folder), 0, leader)):
            pass
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(temporary_folders, "mark", mark)
    with pytest.raises(OSError, match="No space left"):
        LocalRay.start(1, stand_in)


def test_a_token_that_cannot_be_had_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is any process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(local_ray, "_own_token", raises(UserError("Ray was imported before this run")))
    with pytest.raises(UserError, match="imported before"):
        LocalRay.start(1)
    assert not list(tmp_path.iterdir())


def ray_that_fails(at: str, error: BaseException) -> Any:
    calls: list[str] = []

    def call(name: str, value: object = None) -> Callable[..., object]:
        def do(*_: object, **__: object) -> object:
            calls.append(name)
            if name == at:
                raise error
            return value

        return do

    names = ("connect", "reserve", "launch", "leave", "leave_place", "end", "CoordinatorWatchdog")
    known = {name: call(name) for name in names}
    plan = SimpleNamespace(ProcessResources=lambda *_: None, ProcessPlacement=local_ray_plan, calls=calls)
    return SimpleNamespace(**known, **vars(plan))


def local_ray_plan(*_: object) -> object:
    from gearshift.engine.ray.actors import ProcessPlacement

    return ProcessPlacement("run", {}, 1, 1)


@pytest.mark.parametrize(
    ("at", "error", "left"),
    [
        ("connect", ConnectionError("the head does not answer"), []),
        ("reserve", UserError("there is no room"), ["leave"]),
        ("launch", KeyboardInterrupt(), ["leave_place", "leave"]),
        (
            "CoordinatorWatchdog",
            RuntimeError("no thread"),
            ["end", "leave"],
        ),  # after the coordinator was started
    ],
)
def test_a_launch_that_fails_after_ray_was_started(
    stand_in: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    error: BaseException,
    left: list[str],
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("STAND_IN_STARTS", "1")
    ray = ray_that_fails(at, error)
    monkeypatch.setattr(launch, "_ray", lambda: ray)
    ray.launch = ray.launch if at == "launch" else lambda *_: ray.calls.append("launch") or "hub"
    folder = run_folder.create(tmp_path, "shop")
    recipe: Any = None
    with pytest.raises(type(error)), run_folder.failed_unless_started(folder):
        launch.start(recipe, ClusterSettings(), folder=folder, workers=1, shards=1)
    assert ray.calls[ray.calls.index(at) + 1 :] == left
    assert run_folder.read(folder).state == "failed"
