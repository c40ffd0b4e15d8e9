"""Rows for serving: bytes per row, lookups per second and the largest error, for each precision.

    python benchmarks/bench_frozen_rows.py --rows 2000000

Rows of width 16, normal weights of deviation .05. Each lookup is of 1,024 random ids in one thread, 1 in 20 unknown;
the precisions alternate, and a plain numpy gather of as many float32 rows in memory runs beside them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gearshift.embedding.frozen_rows import FrozenRows, RowPrecision, write_blocks
from gearshift.embedding.store import RowBlock
from gearshift.parameters.row_changes import by_partition

WIDTH, BATCH, BATCHES = 16, 1024, 400
PRECISIONS: tuple[RowPrecision, ...] = ("float32", "bfloat16", "int8")


def rows_of(count: int) -> RowBlock:
    weights_UW = np.random.default_rng(1).normal(0, 0.05, (count, WIDTH)).astype(np.float32)
    zeros_U = np.zeros(count, np.uint32)
    return RowBlock(np.arange(count), weights_UW, weights_UW[:, :0], zeros_U, zeros_U, zeros_U)


def blocks(rows: RowBlock) -> Iterator[RowBlock]:
    for _, block in by_partition([rows]):
        yield block


def lookups_per_second(look: Callable[[Any], object], ids: list[Any]) -> float:
    begin = time.perf_counter()
    for batch in ids:
        look(batch)
    return len(ids) * BATCH / (time.perf_counter() - begin)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-frozen-", dir="/var/tmp"))
    rows = rows_of(chosen.rows)
    random = np.random.default_rng(2)
    ids = [random.integers(0, chosen.rows * 20 // 19, BATCH) for _ in range(BATCHES)]
    figures: dict[str, Any] = {"rows": chosen.rows}
    looks: dict[str, Callable[[Any], object]] = {
        "gather": lambda batch: rows.weights_UW[np.minimum(batch, chosen.rows - 1)]
    }
    try:
        for precision in PRECISIONS:
            written = write_blocks(folder / precision, blocks(rows), (WIDTH,), precision)
            figures[f"{precision}_bytes_per_row"] = round(written.bytes / written.rows, 1)
            figures[f"{precision}_largest_error"] = float(f"{written.largest_error:.3g}")
            looks[f"{precision}_mapped"] = FrozenRows.open(folder / precision).lookup
            looks[f"{precision}_loaded"] = FrozenRows.open(folder / precision, load=True).lookup
        rates: dict[str, list[float]] = {name: [] for name in looks}
        for _ in range(chosen.rounds + 1):
            for name, look in looks.items():
                rates[name].append(lookups_per_second(look, ids))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, measured in rates.items():  # the first round reads the files
        figures[f"{name}_lookups_per_second"] = round(statistics.median(measured[1:]))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
