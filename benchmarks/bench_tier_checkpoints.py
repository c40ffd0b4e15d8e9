"""Checkpoints with rows on disk: the training rate while one is written, and how fast one is restored.

    python benchmarks/bench_tier_checkpoints.py                     10 M rows, minutes, 6 GB of disk
    python benchmarks/bench_tier_checkpoints.py --rows 100000000    half an hour, 50 GB of disk

26 fields, zipf 1.05, width 16, Adagrad, DNN 400-400, batch 4096, memory for `--share` of the rows. `rate` is the
training rate from the cut until the checkpoint is complete over that of the turns before and after it; the rows are
written by a thread of low priority, as in a run, and the last of `--rounds` checkpoints is kept. `restore_share`:
the bytes of its row files per second of restoring it into a new store (every block is verified, live rows are
counted, rows that fit are put into memory), over the rate at which the same files are read from front to back,
directly, by `--readers` threads, measured before and after. `--rounds 0` measures the restoring only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from gearshift_side import batches, fill
from networks import SCHEMA, network
from protocol import BATCH, DENSE_LR, ROW_INIT, ROW_LR, zipf_task

from gearshift.data.batch import Batch
from gearshift.data.prefetch import prefetched
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad
from gearshift.optim.first_order import Adam
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.server import RowSettings
from gearshift.run.low_priority import in_background
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

ROW_BYTES = 2 * 16 * 4 + 20 + 36  # in memory, with its part of the index
READ_BYTES = 1 << 20


def make_learner(folder: Path, budget: int) -> Learner:
    return Learner(
        Worker(network("dnn"), SCHEMA, threads=torch.get_num_threads()),
        rows=RowSettings(RowAdagrad(lr=ROW_LR), init=ROW_INIT),
        optimizer=Adam(lr=DENSE_LR),
        tier=ColdTier(folder, budget),
    )


def seconds_of(learner: Learner, turn: list[Batch]) -> float:
    began = time.perf_counter()
    for found in prefetched(map(learner.find_ahead, turn), depth=2):
        learner.step(found)
    return time.perf_counter() - began


def seconds_while_saving(learner: Learner, path: Path, data: Iterator[Batch]) -> tuple[int, float]:
    """Steps from the cut until the checkpoint is complete, and their time."""
    began, steps = time.perf_counter(), 0
    snapshot = learner.snapshot()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            checkpoint.write(path, {"step": 0}, snapshot.arrays, snapshot.rows)
        except BaseException as error:
            failures.append(error)
        finally:
            snapshot.close()

    writing = in_background("saver", write, to_its_end=True)
    for found in prefetched(map(learner.find_ahead, data), depth=2):
        learner.step(found)
        steps += 1
        if not writing.is_alive():
            break
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return steps, seconds


def rates_while_saving(
    learner: Learner, home: Path, data: list[Batch], options: argparse.Namespace
) -> list[float]:
    """Of each round, the rate while a checkpoint is written over the rate around it."""
    endless, ratios = itertools.cycle(data), []
    for number in range(options.rounds):
        before = seconds_of(learner, list(itertools.islice(endless, options.turn)))
        steps, seconds = seconds_while_saving(learner, home / f"step-{number}", endless)
        after = seconds_of(learner, list(itertools.islice(endless, options.turn)))
        ratios.append(steps / seconds / (2 * options.turn / (before + after)))
        print(
            f"checkpoint {number}: {seconds:.1f} s, {steps} steps, {ratios[-1]:.3f} of the rate", flush=True
        )
        if number + 1 < options.rounds:
            remove(home / f"step-{number}")
    return ratios


def remove(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def bytes_per_second(files: list[Path], readers: int) -> float:
    """Of reading these files from front to back, past the page cache."""

    def read(file: Path) -> int:
        buffer, done = mmap.mmap(-1, READ_BYTES), 0
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
        try:
            while got := os.preadv(descriptor, [buffer], done):
                done += got
        finally:
            os.close(descriptor)
        return done

    began = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        size = sum(pool.map(read, files))
    return size / (time.perf_counter() - began)


def restored(path: Path, home: Path, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    files = sorted(path.glob("*.gsr"), key=lambda file: -file.stat().st_size)
    size = sum(file.stat().st_size for file in files)
    learner = make_learner(home / "restored", budget)
    before = bytes_per_second(files, options.readers)
    began, cpu = time.perf_counter(), time.process_time()
    store = learner.server.stores[0]
    saved = Checkpoint.open(path)
    if not store.adopt(saved.stacks("rows0")):
        raise SystemExit("the store did not take over the files of the checkpoint")
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    after = bytes_per_second(files, options.readers)
    counts = store.tier.counts()
    assert counts is not None
    return {
        "restore_share": round(size / seconds / statistics.mean([before, after]), 3),
        "restore_seconds": round(seconds, 2),
        "restore_cpu_seconds": round(spent, 2),
        "restored_rows": len(store),
        "rows_in_memory": counts.hot_rows,
        "file_bytes": size,
        "files": len(files),
        "read_bytes_per_second": [round(before), round(after)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--share", type=float, default=1 / 8)
    parser.add_argument("--rounds", type=int, default=5, help="checkpoints")
    parser.add_argument("--turn", type=int, default=30, help="batches between two checkpoints")
    parser.add_argument("--batches", type=int, default=200, help="different ones")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--folder", default=None, help="for the files; the system's temporary one if not set")
    options = parser.parse_args()
    budget = int(options.rows * ROW_BYTES * options.share)
    task = zipf_task(options.rows, options.batches)
    data = batches(task.train)
    np.random.default_rng(0).shuffle(data)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        home = Path(folder)
        learner = make_learner(home / "rows", budget)
        fill(learner.server.stores[0], task.sizes)
        seconds_of(learner, data[: options.turn])
        ratios = rates_while_saving(learner, home, data, options)
        if not ratios:
            seconds_while_saving(learner, home / "step-0", itertools.cycle(data))
        learner.server.stores[0].tier.settle()  # type: ignore[attr-defined]
        last = home / f"step-{max(0, options.rounds - 1)}"
        found = restored(last, home, budget, options)
    rate = (
        {"rate": round(statistics.median(ratios), 3), "rates": [round(r, 3) for r in ratios]}
        if ratios
        else {}
    )
    print(json.dumps({**rate, **found, "rows": options.rows, "batch": BATCH, "budget": budget}))


if __name__ == "__main__":
    main()
