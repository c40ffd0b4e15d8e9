"""One Ray cluster for all tests that need one: to start it takes longer than most runs.

Their modules have the mark `ON_RAY`: pytest-xdist keeps them in one process (`--dist loadgroup`), so they share the
cluster and do not run beside each other.
"""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.engine.ray.local_cluster import LocalRay
from tests.on_ray.leftovers import folders, processes

ON_RAY = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="session")
def temporary() -> Iterator[Path]:
    """All that Gearshift puts into a temporary folder comes here, where nobody else puts anything.

    Not pytest's own: the path of a socket must be short.
    """
    multiprocessing.util.get_temp_dir()  # removed when the process ends: not inside a folder that goes before that
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="gst-", ignore_cleanup_errors=True) as name:
        tempfile.tempdir = os.environ["TMPDIR"] = name
        yield Path(name)
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]


@pytest.fixture(scope="session")
def ray_here(temporary: Path) -> Iterator[LocalRay]:
    # Its processes import the tests' modules as we do.
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    local = LocalRay.start(12)
    yield local
    local.stop()
    assert not _left(Path(local.folder)), "Ray itself is still there"


@pytest.fixture
def cluster(ray_here: LocalRay, temporary: Path) -> Iterator[gs.ClusterSettings]:
    """To run there; afterwards nothing of the run is left."""
    yield gs.ClusterSettings(
        address=ray_here.address,
        wire="ipc",
        patience=5.0,
        coordinator_cpus=0.5,
        shard_cpus=0.5,
        worker_cpus=0.5,
    )
    own = Path(ray_here.folder)
    left = _left(own, "gearshift ", "ray::ProcessActor", "ray::CoordinatorActor", "ray::ContextStore")
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # the next test shall not suffer for it
    assert not left, f"processes that outlived their run: {left}"
    assert folders(temporary) == {own.name}


def _left(folder: Path, *titles: str) -> dict[int, str]:
    """What is still there when it has had some time to end."""
    until = time.monotonic() + 30
    while (left := processes(folder, *titles)) and time.monotonic() < until:
        time.sleep(0.2)
    return left
