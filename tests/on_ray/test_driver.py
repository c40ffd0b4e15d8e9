"""Whoever started a run may die: the run does not notice, and its own cluster ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gearshift import run_folder
from tests.ledger import Ledger
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.leftovers import folders, processes

pytestmark = [ON_RAY, pytest.mark.slow]  # test_ray_run.py does the same from the command line
EXAMPLES = 20_000


def test_the_run_goes_on_without_its_starter(tmp_path: Path, temporary: Path) -> None:
    before = folders(temporary)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    command = [sys.executable, "-m", "tests.on_ray.starter", str(tmp_path), str(EXAMPLES)]
    starter = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        folder = Path(starter.stdout.readline().strip())
        assert folder.parent == tmp_path, "it did not start"
        (own,) = (temporary / name for name in folders(temporary) - before)
        assert len(processes(own, "ray::Process")) == 2
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait(30)
    assert run_folder.read(folder).state == "running"
    wait_until(lambda: run_folder.read(folder).state != "running")
    assert run_folder.read(folder).state == "ended"
    assert json.loads((folder / "report.json").read_text())["examples"] == EXAMPLES
    Ledger.of(folder).assert_exact(EXAMPLES)
    wait_until(lambda: not processes(own))
    wait_until(lambda: not own.exists())


def wait_until(true: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)
