"""Training with rows on disk against the same training with all rows in memory, in one process and interleaved.

26 fields, zipf 1.05, width 16, Adagrad, DNN 400-400, batch 4096; every batch is new. Both stores hold all rows before
the first turn. Per budget (a share of the memory of all rows) it prints the ratio of both rates, the share of lookups
found in memory, reads and bytes per example, and what the files cost. `rate_without_chunks` is the ratio at 1/8.

    python benchmarks/bench_tiered.py --rows 20000000
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from gearshift_side import batches, fill
from networks import SCHEMA, network
from protocol import BATCH, DENSE_LR, ROW_INIT, ROW_LR, zipf_task

from gearshift.data.batch import Batch
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad, TierCounts
from gearshift.optim.first_order import Adam
from gearshift.parameters.server import RowSettings
from gearshift.training.learner import Learner
from gearshift.training.look_ahead import read_ahead
from gearshift.training.worker import Worker


def make_learner(sizes: tuple[int, ...], tier: ColdTier | None = None) -> Learner:
    learner = Learner(
        Worker(network("dnn"), SCHEMA, threads=torch.get_num_threads()),
        rows=RowSettings(RowAdagrad(lr=ROW_LR), init=ROW_INIT),
        optimizer=Adam(lr=DENSE_LR),
        tier=tier,
    )
    fill(learner.server.stores[0], sizes)
    return learner


def seconds_of(learner: Learner, turn: list[Batch]) -> float:
    began = time.perf_counter()
    for found in read_ahead((batch for batch in turn), [learner], workers=1):
        learner.step(found)
    return time.perf_counter() - began


def since(now: TierCounts, before: TierCounts) -> TierCounts:
    return TierCounts(*(a - b for a, b in zip(astuple(now), astuple(before), strict=True)))


def race(
    plain: Learner, sizes: tuple[int, ...], share: float, data: list[Batch], options: Any
) -> dict[str, Any]:
    budget = int(plain.row_bytes * share)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tiered = make_learner(sizes, ColdTier(Path(folder), budget))
        store = tiered.server.stores[0]
        turns = [data[i : i + options.turn] for i in range(0, len(data), options.turn)]
        warm, timed = turns[: options.warm], turns[options.warm :]
        for turn in warm:
            seconds_of(tiered, turn)
        before = store.tier_counts()
        assert before is not None
        seconds = [(seconds_of(plain, turn), seconds_of(tiered, turn)) for turn in timed]
        after = store.tier_counts()
        assert after is not None
        used, examples = since(after, before), sum(map(len, timed)) * BATCH
        store.settle_tier()  # type: ignore[attr-defined]
        settled = store.tier_counts()
        assert settled is not None
        return {
            "share": share,
            "rate": round(statistics.median(a / b for a, b in seconds), 3),
            "examples_per_second": round(options.turn * BATCH / statistics.median(b for _, b in seconds)),
            "in_memory": round(used.hit_rate, 4),
            "reads_per_example": round(used.reads / examples, 2),
            "bytes_per_example": round(used.bytes_read / examples),
            "space": round(settled.space, 2),
            "write_amplification": round(settled.write_amplification, 2),
            "bytes_per_cold_row": round(settled.index_bytes / max(1, settled.stored_rows), 2),
            "memory_vs_budget": round(tiered.row_bytes / budget, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--shares", type=float, nargs="*", default=[1 / 2, 1 / 8, 1 / 32])
    parser.add_argument("--turn", type=int, default=15, help="batches of one side's turn")
    parser.add_argument("--warm", type=int, default=4, help="turns before the measured ones")
    parser.add_argument("--turns", type=int, default=6, help="measured turns")
    parser.add_argument(
        "--folder", default=None, help="for the files; the system's temporary folder if not set"
    )
    options = parser.parse_args()
    task = zipf_task(options.rows, options.turn * (options.warm + options.turns))
    data = batches(task.train)
    plain = make_learner(task.sizes)
    np.random.default_rng(0).shuffle(data)
    results = []
    for share in options.shares:
        results.append(race(plain, task.sizes, share, data, options))
        print(results[-1], flush=True)
    eighth = [result for result in results if abs(result["share"] - 1 / 8) < 1e-9]
    print(json.dumps({"rate_without_chunks": eighth[0]["rate"] if eighth else None, "budgets": results}))


if __name__ == "__main__":
    main()
