"""The row path on a memory-mapped file: a row lies where its number says, so there is no index at all.

That is more than a table of hashed ids could have: they would need an index, in memory. The map is advised that
reads are random, and 16 threads fetch a batch, because page faults would come one at a time otherwise.
"""

from __future__ import annotations

import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tier.row_path import WIDTH, Floats, Task, adagrad, serve
from tier.traces import Rows

THREADS = 16


class MappedPath:
    def __init__(self, task: Task) -> None:
        with (task.folder / "rows").open("wb+") as file:
            file.truncate(task.rows * 2 * WIDTH * 4)
            self._map = mmap.mmap(file.fileno(), 0)
        self._map.madvise(mmap.MADV_RANDOM)
        self._rows_NV = np.frombuffer(self._map, np.float32).reshape(-1, 2 * WIDTH)
        self._pool = ThreadPoolExecutor(THREADS)

    def fill(self, rows_N: Rows, values_NV: Floats) -> None:
        self._rows_NV[rows_N[0] : rows_N[-1] + 1] = values_NV

    def filled(self) -> None:
        self._map.flush()

    def step(self, rows_U: Rows, gradients_UW: Floats) -> None:
        values_UV = self._fetch(rows_U)
        adagrad(values_UV, gradients_UW)
        self._rows_NV[rows_U] = values_UV

    def settle(self) -> None:
        self._map.flush()

    def weights(self, rows_U: Rows) -> Floats:
        return self._fetch(rows_U)[:, :WIDTH]

    def close(self) -> None: ...

    def _fetch(self, rows_U: Rows) -> Floats:
        values_UV = np.empty((len(rows_U), 2 * WIDTH), np.float32)
        cuts = np.linspace(0, len(rows_U), THREADS + 1).astype(int)

        def take(part: int) -> None:
            piece = slice(cuts[part], cuts[part + 1])
            np.take(self._rows_NV, rows_U[piece], axis=0, out=values_UV[piece], mode="clip")

        list(self._pool.map(take, range(THREADS)))
        return values_UV


if __name__ == "__main__":
    serve(MappedPath)
