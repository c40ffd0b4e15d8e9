"""The harness itself: it finds the processes of each role, and measures the time without a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.matrix import processes
from tests.matrix.live_run import Sample
from tests.matrix.verdict import longest_gap, step_times

MARKER = f"test-{os.getpid()}"
LISTEN = (
    "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True);"
    "time.sleep(60)"
)


@pytest.fixture
def titled() -> Iterator[Callable[..., int]]:
    """Starts Python under a title; it is killed afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(title: str, *arguments: str) -> int:
        started.append(
            subprocess.Popen(
                [title, *arguments],
                executable=sys.executable,
                env={**os.environ, processes.VARIABLE: MARKER},
                stdout=subprocess.PIPE,
            )
        )
        out = started[-1].stdout
        assert out is not None and out.readline() == b"\n"
        return started[-1].pid

    yield start
    processes.end_all(MARKER)
    for process in started:
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
    assert not processes.marked(MARKER)


def test_processes_are_found_by_title_socket_and_record(
    tmp_path: Path, titled: Callable[[str, str, str], int]
) -> None:
    with tempfile.TemporaryDirectory() as short:
        listen = ("-c", LISTEN)
        shard = titled("ray::ProcessActor", *listen, f"{short}/shard-0-1048577")
        worker = titled("ray::ProcessActor", *listen, f"{short}/else")
        hub = titled("ray::CoordinatorActor.watch", *listen, f"{short}/coordinator-0-1048576")
        raylet = titled(f"{short}/raylet", *listen, f"{short}/raylet.sock")
        newer = titled("gearshift shard 1", *listen, f"{short}/another")
        (tmp_path / "cluster.json").write_text(json.dumps({"pid": hub}))
        found = processes.by_role(MARKER, tmp_path)
    assert found == {
        "coordinator": [hub],
        "shard": sorted([shard, newer]),
        "worker": [worker],
        "raylet": [raylet],
        "GCS": [],
    }


def test_the_longest_gap_is_counted_from_the_fault_on() -> None:
    times = [1.0, 8.0, 9.0, 12.0, 12.5]
    assert longest_gap(times, fault=9.5, end=20.0, done=True) == 3.0, (
        "the longer gap was over before the fault"
    )
    assert longest_gap(times, fault=13.0, end=20.0, done=True) == 7.0, "no step followed"
    assert longest_gap([*times, 30.0], fault=9.5, end=20.0, done=True) == 3.0, (
        "what a resumed run does is another matter"
    )
    assert longest_gap(times, fault=9.5, end=20.0, done=False) == 7.5, "it stood still until it gave up"


def test_steps_are_read_from_every_log_and_from_looks_at_the_run(tmp_path: Path) -> None:
    (tmp_path / "events-000.jsonl").write_text(
        '{"log":1,"time":100.0}\n{"at":1.5,"push":[0,0],"do":[["apply",1,[]]]}\n{"at":2.0,"ask":[0]}\n{"at":3.0,"pu'
    )
    (tmp_path / "events-001.jsonl").write_text('{"log":1,"time":110.0}\n{"at":0.5,"do":[["apply",2,[]]]}\n')
    samples = [Sample(at, step, 0, 0, "") for at, step in ((100.0, 0), (101.6, 1), (105.0, 1), (120.0, 2))]
    assert step_times(tmp_path, samples) == [101.5, 101.6, 110.5, 120.0]
