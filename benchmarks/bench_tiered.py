"""Training with rows on disk against the same training with all rows in memory, in one process and interleaved.

26 fields, zipf 1.05, width 16, Adagrad, DNN 400-400, batch 4096; every batch is new. Each store holds all rows before
the first turn; if memory does not hold `--rows`, the side in memory has as many as fit (`--in-memory`). Per budget (a
share of the memory of all rows): the ratio of both rates with chunks of look-ahead, then without, and the tier's work.

    disk_share           random reads by the tier's lookups / what a bare loop reads
    merging_share        the same lookups while files are merged / while it is quiet
    space, write_amplification   a store whose rows are replaced `--cycles` times, from an aged store on
    memory_vs_budget     what the store accounts for; resident_vs_budget: what the process gained

    python benchmarks/bench_tiered.py                     # 20 M rows, under half an hour on a quiet machine
    python benchmarks/bench_tiered.py --rows 100000000 --in-memory 60000000 --shares .125
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from gearshift_side import fill
from networks import SCHEMA, network
from protocol import BATCH, DENSE_LR, ROW_INIT, ROW_LR
from tiered_store import Rows, ZipfLog, fill_files, groups_of

from gearshift import _core
from gearshift.data.batch import Batch
from gearshift.embedding.cold_tier import ColdTier, LookAhead, StorageSettings
from gearshift.embedding.store import RowAdagrad, RowPart, TierCounts
from gearshift.embedding.table_store import MemoryStore
from gearshift.optim.first_order import Adam
from gearshift.parameters.server import RowSettings
from gearshift.training.learner import Learner
from gearshift.training.look_ahead import read_ahead
from gearshift.training.worker import Worker

BYTES_PER_ROW = 176  # of a row in memory with its index
FILLED = 0.65  # of the budget is for rows in memory at first, the most frequent ones; the rest is for what it also pays


def make_learner(tier: ColdTier | None = None) -> Learner:
    return Learner(
        Worker(network("dnn"), SCHEMA, threads=torch.get_num_threads()),
        rows=RowSettings(RowAdagrad(lr=ROW_LR), init=ROW_INIT),
        optimizer=Adam(lr=DENSE_LR),
        tier=tier,
    )


class Side:
    """One learner, trained in turns on a stream of its own that stands still between them."""

    def __init__(self, learner: Learner, batches: list[Batch]) -> None:
        self.learner, self._batches = learner, batches
        self._turn = threading.Event()
        self._found = read_ahead(self._stream(), [learner], workers=1)

    def train(self, steps: int) -> float:
        """Seconds; reading ahead that was begun for the next turn counts."""
        self._turn.set()
        began = time.perf_counter()
        for _ in range(steps):
            self.learner.step(next(self._found))
        self._turn.clear()
        return time.perf_counter() - began + self._settled()

    def _settled(self) -> float:
        began, before = time.perf_counter(), -1
        while (reads := tier.counts.rows_read if (tier := self.learner.tier) else 0) != before:
            before = reads
            time.sleep(0.03)
        return max(0.0, time.perf_counter() - began - 0.06)

    def close(self) -> None:
        self._turn.set()
        self._found.close()

    def _stream(self) -> Generator[Batch]:
        for batch in self._batches:
            self._turn.wait()
            yield batch


def since(now: TierCounts, before: TierCounts) -> TierCounts:
    return TierCounts(*(a - b for a, b in zip(astuple(now), astuple(before), strict=True)))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def race(
    plain: Learner, logs: tuple[ZipfLog, ZipfLog], rows: list[Rows], share: float, chunks: bool, options: Any
) -> dict[str, Any]:
    log, plain_log = logs
    memory = int(sum(len(group.ids_U) for group in rows) * BYTES_PER_ROW * share)
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
        tier = StorageSettings(folder).tier(memory, folder)
        if not chunks:
            tier = replace(tier, budget=memory, lookahead=LookAhead())
        every = options.turn * (options.warm + options.turns)
        data = log.batches(2 * every), plain_log.batches(every)
        resident = resident_bytes()
        learner = make_learner(tier)
        store = learner.server.stores[0]
        assert isinstance(store, MemoryStore)
        fill_files(store, rows, FILLED * share, Path(options.folder or tempfile.gettempdir()))
        sides = [Side(learner, data[0]), Side(plain, data[1])]
        for _ in range(options.warm):
            sides[0].train(options.turn)
        before = store.tier.counts()
        seconds = [[side.train(options.turn) for side in sides] for _ in range(options.turns)]
        after = store.tier.counts()
        assert before is not None and after is not None
        gained = resident_bytes() - resident
        for side in sides:
            side.close()
        used, examples = since(after, before), options.turns * options.turn * BATCH
        return {
            "share": share,
            "chunks": chunks,
            "rate": round(statistics.median(b / a for a, b in seconds), 3),
            "examples_per_second": round(options.turn * BATCH / statistics.median(a for a, _ in seconds)),
            "in_memory": round(1 - used.rows_read / max(1, used.lookups), 4),
            "rows_in_memory": round(after.hot_rows / (after.hot_rows + after.cold_rows), 4),
            "rows_read_per_example": round(used.rows_read / examples, 2),
            "reads_per_example": round(used.reads / examples, 2),
            "bytes_per_example": round(used.bytes_read / examples),
            "bytes_per_cold_row": round(after.index_bytes / max(1, after.stored_rows), 2),
            "memory_vs_budget": round(learner.row_bytes / tier.budget, 3),
            "resident_vs_budget": round(gained / memory, 3),
        }


def reads_per_second(store: MemoryStore, cold: np.ndarray[Any, Any], seconds: float) -> float:
    random = np.random.default_rng(time.perf_counter_ns())
    calls = [np.unique(cold[random.integers(0, len(cold), 8192)]) for _ in range(64)]
    before, began = store.tier.counts(), time.perf_counter()
    for ids_U in itertools.cycle(calls):
        store.peek(ids_U)
        if time.perf_counter() - began > seconds:
            break
    took, after = time.perf_counter() - began, store.tier.counts()
    assert before is not None and after is not None
    return (after.rows_read - before.rows_read) / took


def bare_reads_per_second(folder: Path, seconds: float) -> float:
    random, done, began = np.random.default_rng(3), 0, time.perf_counter()
    files = list(folder.glob("rows-*/rows-*.gsr"))
    while time.perf_counter() - began < seconds:
        file = files[random.integers(len(files))]
        offsets = np.sort(random.integers(0, file.stat().st_size // 4096 - 1, 8192)).astype(np.uint64) * 4096
        _core.read_blocks(str(file), offsets)
        done += len(offsets)
    return done / (time.perf_counter() - began)


def disk_share(rows: list[Rows], options: Any) -> dict[str, float]:
    """Lookups against the bare loop, interleaved; then while the files of all groups are merged."""
    cold = np.concatenate([group.ids_U[group.touches_U <= np.median(group.touches_U)] for group in rows])
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = MemoryStore(
            (RowPart("embedding", 16, RowAdagrad()),), seed=1, tier=ColdTier(Path(folder), 1 << 30)
        )
        fill_files(store, rows, 0.02, Path(options.folder or tempfile.gettempdir()), runs=9)
        merging, merges = while_merging(store, cold)
        pairs = [(reads_per_second(store, cold, 2), bare_reads_per_second(Path(folder), 2)) for _ in range(5)]
        quiet = statistics.median(tier for tier, _ in pairs)
        return {
            "disk_share": round(statistics.median(tier / bare for tier, bare in pairs), 3),
            "merging_share": round(statistics.median(merging) / quiet, 3) if merging else None,
            "merging_windows": len(merging),
            "merged_meanwhile": merges,
            "reads_per_second": round(quiet),
        }


def while_merging(store: MemoryStore, cold: np.ndarray[Any, Any]) -> tuple[list[float], int]:
    """Reads per second in windows that lie wholly within merging, and how many merges there were."""
    before, rates = store.tier.counts(), list[float]()
    merger = threading.Thread(target=store.tier.settle)
    merger.start()
    while merger.is_alive():
        rate = reads_per_second(store, cold, 0.5)
        if merger.is_alive():
            rates.append(rate)
    merger.join()
    return rates, store.tier.counts().merges - before.merges


def aged(options: Any) -> dict[str, float]:
    """Every row is replaced `cycles` times; the first cycle ages the store and does not count."""
    log = ZipfLog(options.aged_rows)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tier = ColdTier(Path(folder), int(options.aged_rows * BYTES_PER_ROW / 8))
        store = MemoryStore((RowPart("embedding", 16, RowAdagrad()),), seed=1, tier=tier)
        fill_files(store, groups_of(log), 1 / 8, Path(options.folder or tempfile.gettempdir()))
        first, space, step, chunk = None, 1.0, 0, options.aged_rows // 39
        ids = np.concatenate([group.ids_U for group in groups_of(log)])
        random = np.random.default_rng(4)
        for cycle in range(1 + options.cycles):
            for _ in range(39):
                some = random.choice(ids, chunk, replace=False)
                step += 1
                store.pull(some)
                store.push(
                    some,
                    np.full((chunk, 16), 0.1, np.float32),
                    np.ones(chunk, np.uint32),
                    examples=1,
                    step=step,
                )
                counts = store.tier.counts()
                assert counts is not None
                space = max(space, counts.space) if cycle else 1.0
            first = first or counts
        store.tier.settle()
        last = store.tier.counts()
        assert first is not None and last is not None
        written = since(last, first)
        return {
            "space": round(last.space, 2),
            "most_space": round(space, 2),
            "write_amplification": round(written.write_amplification, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--in-memory", type=int, default=None, help="rows of the side in memory, if fewer")
    parser.add_argument("--shares", type=float, nargs="*", default=[1 / 2, 1 / 8, 1 / 64])
    parser.add_argument("--turn", type=int, default=60, help="batches of one side's turn")
    parser.add_argument("--warm", type=int, default=2, help="turns before the measured ones")
    parser.add_argument("--turns", type=int, default=4, help="measured turns")
    parser.add_argument("--aged-rows", type=int, default=2_000_000)
    parser.add_argument("--rates-only", action="store_true", help="only the ratios of training rates")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument(
        "--folder", default=None, help="for the files; the system's temporary folder if not set"
    )
    options = parser.parse_args()
    results: dict[str, Any] = {} if options.rates_only else aged(options)
    print(results, flush=True)
    log = ZipfLog(options.rows)
    rows = groups_of(log)
    if not options.rates_only:
        results |= disk_share(rows, options)
        print(results, flush=True)
    plain = make_learner()
    plain_log = ZipfLog(options.in_memory or options.rows, seed=2)
    fill(plain.server.stores[0], plain_log.sizes)
    budgets = []
    for share in options.shares:
        for chunks in (True, False):
            budgets.append(race(plain, (log, plain_log), rows, share, chunks, options))
            print(budgets[-1], flush=True)
    for budget in budgets:
        if abs(budget["share"] - 1 / 8) < 1e-9:
            results["rate_with_chunks" if budget["chunks"] else "rate_without_chunks"] = budget["rate"]
            results["bytes_per_cold_row"] = budget["bytes_per_cold_row"]
    print(json.dumps(results | {"budgets": budgets}))


if __name__ == "__main__":
    main()
