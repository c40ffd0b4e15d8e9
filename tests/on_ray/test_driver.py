"""Whoever started a run may die: the run does not notice, and its own cluster ends with it. Ray's head may not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gearshift.parameters import checkpoint
from gearshift.run import folder as run_folder
from tests.ledger import Ledger
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.leftovers import folders, processes

pytestmark = ON_RAY
EXAMPLES = 20_000


@contextmanager
def started(runs: Path, temporary: Path, examples: int) -> Iterator[tuple[subprocess.Popen[str], Path, Path]]:
    """Its starter, its folder, and that of its cluster."""
    before = folders(temporary)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "tests.on_ray.starter", str(runs), str(examples)]
    pipe = subprocess.PIPE
    starter = subprocess.Popen(command, cwd=root, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        assert starter.stdout is not None
        folder = Path(starter.stdout.readline().strip())
        assert folder.parent == runs, "it did not start"
        (own,) = (temporary / name for name in folders(temporary) - before)
        yield starter, folder, own
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait(30)


@pytest.mark.slow  # test_ray_run.py does the same from the command line
def test_the_run_goes_on_without_its_starter(tmp_path: Path, temporary: Path) -> None:
    with started(tmp_path, temporary, EXAMPLES) as (_, folder, own):
        titles = sorted(processes(own, "gearshift ").values())
        assert titles == [
            "gearshift coordinator",
            "gearshift shard 0",
            "gearshift site store",
            "gearshift worker 0",
        ]
    assert run_folder.read(folder).is_live
    wait_until(lambda: not run_folder.read(folder).is_live)
    assert run_folder.read(folder).state == "done"
    assert json.loads((folder / "report.json").read_text())["examples"] == EXAMPLES
    Ledger.of(folder).assert_exact(EXAMPLES)
    wait_until(lambda: not processes(own))
    wait_until(lambda: not own.exists())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_when_its_own_ray_dies_the_run_ends_in_a_sentence(tmp_path: Path, temporary: Path, part: str) -> None:
    """At once, with all its processes, and nothing says that it runs. One of them is frozen, and ends too."""
    with started(tmp_path, temporary, 100 * EXAMPLES) as (starter, folder, own):
        os.kill(next(iter(processes(own, "gearshift worker"))), signal.SIGSTOP)
        (victim,) = (pid for pid, command in processes(own).items() if f"/{part} " in command)
        os.kill(victim, signal.SIGKILL)
        _, said = starter.communicate(timeout=90)  # it took three minutes before it knew its own child
    assert starter.returncode == 1
    sentence = said.splitlines()[-1]
    assert f"the Ray cluster of this run died (its {part} was killed by signal 9). " in sentence
    assert sentence.endswith(f"resume: gearshift train --resume {folder}")
    assert not processes(own) and not own.exists()
    record = run_folder.read(folder)
    assert record.state == "failed" and part in record.reason and record.ended is not None
    assert not (folder / "control.sock").exists() and not (folder / "control.key").exists()
    assert checkpoint.resolve(folder).is_dir()  # and it can be resumed


def wait_until(true: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)
