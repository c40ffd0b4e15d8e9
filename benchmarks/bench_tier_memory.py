"""Resident memory of a long run with rows on disk, above that of the same run with an empty store.

    python benchmarks/bench_tier_memory.py                             25 minutes, 15 GB of disk
    python benchmarks/bench_tier_memory.py --minutes 2 --empty-minutes 1 --rows 2000000 --memory 64

A run of the trainer in a process of its own: 26 fields, zipf 1.05, width 16, Adagrad, DNN 400-400, batch 4096, ids
for `--rows` rows, `memory` of `--memory` MiB, a checkpoint every `--checkpoint` seconds. First the same run with its
ids folded into a few thousand per field, which stay in memory: the median of its resident memory, after its first
quarter and less what these rows take, is what an empty store would need. Every half second the parent reads the
resident memory (psutil); printed is the largest of each minute.

`over_budget` is the largest resident memory above the empty run's over the budget: the aim is 1.1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

SCRIPT = Path(__file__).parent / "tier" / "training_run.py"
FOLD = 4096  # of the empty run: its batches have nearly as many different rows
ROW_BYTES = 2 * 16 * 4 + 12 + 36  # in memory, with its part of the index
EVERY = 0.5  # seconds


def watched(fold: int, minutes: float, options: argparse.Namespace) -> tuple[list[int], dict[str, Any]]:
    """Resident bytes over time, and what the run says at its end."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        settings = {
            "folder": folder,
            "rows": options.rows,
            "fold": fold,
            "budget": options.memory << 20,
            "seconds": minutes * 60,
            "checkpoint_seconds": options.checkpoint,
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPT), json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            process.stdout.readline()  # it has started
            resident, began = [], time.perf_counter()
            while process.poll() is None and time.perf_counter() - began < minutes * 60:
                resident.append(psutil.Process(process.pid).memory_info().rss)
                time.sleep(EVERY)
            lines = process.communicate()[0].strip().splitlines()
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise SystemExit(f"the run ended with {process.returncode}")
    return resident, json.loads(lines[-1])


def by_minute(resident: list[int]) -> list[int]:
    each = int(60 / EVERY)
    return [max(resident[i : i + each]) for i in range(0, len(resident), each)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--memory", type=int, default=256, help="MiB")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--empty-minutes", type=float, default=4)
    parser.add_argument("--checkpoint", type=float, default=60, help="seconds between two checkpoints")
    parser.add_argument("--folder", default=None, help="for the files; the system's temporary one if not set")
    options = parser.parse_args()
    empty, few = watched(FOLD, options.empty_minutes, options)
    base = statistics.median(empty[len(empty) // 4 :]) - few["tier"]["hot_rows"] * ROW_BYTES
    print(f"empty store: {base / 2**20:.0f} MiB, at most {max(empty) / 2**20:.0f}", flush=True)
    resident, end = watched(0, options.minutes, options)
    curve = [round((most - base) / 2**20, 1) for most in by_minute(resident)]
    print("MiB above it, the largest of each minute:", *curve, flush=True)
    over = max(curve) / options.memory
    figures = {
        "over_budget": round(over, 3),
        "within": over <= 1.1,
        "budget_mib": options.memory,
        "mib": curve,
    }
    print(json.dumps({**figures, "empty_mib": round(base / 2**20, 1), **end}))


if __name__ == "__main__":
    main()
