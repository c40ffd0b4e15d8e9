"""The row path as the benchmark drives it: fetch the rows of a batch, make a step of Adagrad on each, write them
back.

A *path* (our store, RocksDB, LMDB, a mapped file) is a process that waits for commands on its input:

    limit 400000000  -> {"without": null}              memory from now on; or why there is no limit
    fill             -> {"seconds": 31.0}              all rows, with values that follow from their numbers
    run 0 120 900    -> {"rows": ..., "seconds": ..., "cpu": ..., "next": 120}    batches [0, 120), 900 s at most
    values           -> {"sum": ...}                   of some rows: all paths must agree
    memory           -> {"peak": ...}                  that the cgroup has counted, in bytes
    end              -> {"bytes": ...}                 on disk, before it is deleted

The time of a run ends when everything is written and the threads in the background have nothing left to do. `cpu` is
user and system time of all threads of the process, and of the kernel's own threads, which write back the pages of
mapped files: nothing else may run on the machine. Numpy only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from tier.limits import MemoryGroup
from tier.traces import Rows, Trace

KERNEL = "2"  # the parent of all kernel threads
WIDTH = 16
LR, FIRST_STATE, EPSILON = 0.05, 0.1, 1e-8
FILL_ROWS = 1 << 16  # at a time
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    folder: Path  # for the files
    rows: int
    budget: int  # bytes of memory


class RowPath(Protocol):
    def fill(self, rows_N: Rows, values_NV: Floats) -> None:
        """Rows that were not there before, ascending; V: 16 weights, then the state of Adagrad."""

    def filled(self) -> None: ...

    def step(self, rows_U: Rows, gradients_UW: Floats) -> None:
        """Fetch, update, write back."""

    def settle(self) -> None:
        """Waits for threads in the background."""

    def weights(self, rows_U: Rows) -> Floats: ...
    def close(self) -> None: ...


def first_values(rows_N: Rows) -> Floats:
    values = np.empty((len(rows_N), 2 * WIDTH), np.float32)
    values[:, :WIDTH] = ((rows_N % 1009)[:, None] * 1e-5 + np.arange(WIDTH) * 1e-3).astype(np.float32)
    values[:, WIDTH:] = FIRST_STATE
    return values


def gradients(rows_U: Rows, batch: int) -> Floats:
    whole = np.full((len(rows_U), WIDTH), 1e-3 * (1 + batch % 7), np.float32)
    whole[:, ::2] *= -1
    return whole


def adagrad(values_UV: Floats, gradients_UW: Floats) -> None:
    """A step on rows that lie in memory, in place."""
    weights, state = values_UV[:, :WIDTH], values_UV[:, WIDTH:]
    state += gradients_UW * gradients_UW
    weights -= np.float32(LR) * gradients_UW / (np.sqrt(state) + np.float32(EPSILON))


def serve(make: Callable[[Task], RowPath]) -> None:
    """The whole life of a path's process: `python path.py FOLDER SETTINGS`, with the trace in the folder."""
    answers = os.fdopen(int(os.environ["ANSWERS"]), "w")
    home, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    trace, group = Trace.load(home), MemoryGroup(settings["group"])
    files = home / settings["name"]
    files.mkdir()
    path: RowPath | None = None

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer(ready=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "limit":
            answer(without=group.enter(int(numbers[0])))
            continue
        if command == "memory":
            answer(peak=group.peak(), resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
            continue
        path = path or make(Task(files, trace.rows, settings["budget"]))
        if command == "fill":
            answer(seconds=_fill(path, trace.rows))
        elif command == "run":
            first, last, most = map(int, numbers)
            answer(**_run(path, trace, first, last, most))
        elif command == "values":
            answer(sum=float(path.weights(np.arange(0, trace.rows, 997)).astype(np.float64).sum()))
        else:
            size = sum(file.stat().st_blocks * 512 for file in files.rglob("*") if file.is_file())
            path.close()
            answer(bytes=size)


def _fill(path: RowPath, rows: int) -> float:
    began = time.perf_counter()
    for begin in range(0, rows, FILL_ROWS):
        numbers = np.arange(begin, min(begin + FILL_ROWS, rows))
        path.fill(numbers, first_values(numbers))
    path.filled()
    path.settle()
    return time.perf_counter() - began


def _run(path: RowPath, trace: Trace, first: int, last: int, most: int) -> dict[str, float]:
    began, cpu, rows, batch = time.perf_counter(), _cpu_seconds(), 0, first
    while batch < last and time.perf_counter() - began < most:
        rows_U = trace.rows_of(batch)
        path.step(rows_U, gradients(rows_U, batch))
        rows, batch = rows + len(rows_U), batch + 1
    path.settle()
    seconds, spent = time.perf_counter() - began, _cpu_seconds() - cpu
    return {"rows": rows, "seconds": seconds, "cpu": spent, "next": batch}


def _cpu_seconds() -> float:
    """Of this process and of the kernel's threads."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *fields = stat.read_text().rpartition(")")[2].split()
            if parent == KERNEL:
                ticks += int(fields[9]) + int(fields[10])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
