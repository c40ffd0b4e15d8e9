"""How long the rows of a checkpoint take to be written and loaded, all in memory, and whether pushes wait meanwhile.

    python benchmarks/bench_checkpoint.py --rows 3000000 --rounds 5

Rows of width 16 with Adagrad. `write_seconds` is a checkpoint on disk, synced; `load_seconds` is a new store with all
of its rows. `pushes` compares the rate of one thread's pushes while a checkpoint is written, by a thread of low
priority as in a run, with the rate before. To compare two versions, run it with the interpreter of each, in turn.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gearshift.embedding.store import RowAdagrad, RowPart
from gearshift.embedding.table_store import MemoryStore
from gearshift.parameters import checkpoint
from gearshift.run.low_priority import in_background

PARTS = (RowPart("embedding", 16, RowAdagrad()),)
BATCH = 20_000


def filled(rows: int) -> MemoryStore:
    store = MemoryStore(PARTS, seed=1)
    for begin in range(0, rows, 100_000):
        store.pull(np.arange(begin, min(begin + 100_000, rows)), threads=2)
    return store


@dataclass(frozen=True)
class Moment:
    seconds: float
    cpu_seconds: float  # of this process

    @staticmethod
    def now() -> Moment:
        return Moment(time.perf_counter(), time.process_time())

    def __sub__(self, other: Moment) -> Moment:
        return Moment(self.seconds - other.seconds, self.cpu_seconds - other.cpu_seconds)


def write(store: MemoryStore, path: Path) -> Moment:
    begin = Moment.now()
    with store.cut() as cut:
        checkpoint.write(path, {"step": 1}, {}, {"rows0": cut})
    return Moment.now() - begin


def load(path: Path, rows: int) -> Moment:
    begin = Moment.now()
    opened = checkpoint.Checkpoint.open(path)
    store = MemoryStore(PARTS, seed=1)
    stacks = opened.stacks("rows0")
    if not (stacks and store.adopt(stacks)):
        for block in opened.rows("rows0"):
            store.load(block)
    taken = Moment.now() - begin
    assert len(store) == rows
    return taken


def pushes_per_second(store: MemoryStore, rows: int, until: Any) -> float:
    random, count, begin = np.random.default_rng(1), 0, time.perf_counter()
    sums_UW, ones_U = np.full((BATCH, 16), 1e-3, np.float32), np.ones(BATCH, np.uint32)
    while not until() or count < 3:
        ids_U = random.integers(0, rows, BATCH)
        store.push(ids_U, sums_UW, ones_U, examples=1, step=count)
        count += 1
    return count / (time.perf_counter() - begin)


def pushing_while_writing(store: MemoryStore, rows: int, path: Path) -> float:
    """The rate of pushes while a checkpoint is written, divided by that before."""
    end = time.perf_counter() + 1
    quiet = pushes_per_second(store, rows, lambda: time.perf_counter() > end)

    def write_it() -> None:
        write(store, path)

    writing = in_background("writer", write_it)
    busy = pushes_per_second(store, rows, lambda: not writing.is_alive())
    writing.join()
    return busy / quiet


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--rows", type=int, default=3_000_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one if not set")
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=chosen.folder or "/var/tmp"))
    try:
        store = filled(chosen.rows)
        writes, loads, pushes = [], [], []
        for _ in range(chosen.rounds):
            writes.append(write(store, folder / "a"))
            loads.append(load(folder / "a", chosen.rows))
            pushes.append(pushing_while_writing(store, chosen.rows, folder / "b"))
        size = sum(file.stat().st_size for file in (folder / "a").iterdir())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {
        "rows": chosen.rows,
        "bytes_per_row": round(size / chosen.rows, 1),
        "write_seconds": [round(each.seconds, 2) for each in writes],
        "write_cpu_seconds": [round(each.cpu_seconds, 2) for each in writes],
        "load_seconds": [round(each.seconds, 2) for each in loads],
        "load_cpu_seconds": [round(each.cpu_seconds, 2) for each in loads],
        "pushes_while_writing": [round(share, 2) for share in pushes],
        "write_median": round(statistics.median(each.seconds for each in writes), 3),
        "load_median": round(statistics.median(each.seconds for each in loads), 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
