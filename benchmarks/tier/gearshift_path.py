"""The row path on Gearshift's store with a disk tier: `pull` and `push`, whose update is fused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad, RowBlock, RowPart
from gearshift.embedding.table_store import MemoryStore
from tier.row_path import FIRST_STATE, LR, WIDTH, Floats, Task, serve
from tier.traces import Rows, ids_of


class GearshiftPath:
    def __init__(self, task: Task) -> None:
        part = RowPart("embedding", WIDTH, RowAdagrad(lr=LR, initial=FIRST_STATE))
        self._store = MemoryStore([part], seed=1, tier=ColdTier(task.folder, task.budget))
        self._steps = 0

    def fill(self, rows_N: Rows, values_NV: Floats) -> None:
        once = np.ones(len(rows_N), np.uint32)
        weights, state = (np.ascontiguousarray(half) for half in np.hsplit(values_NV, 2))
        self._store.load(RowBlock(ids_of(rows_N), weights, state, once, once, once))

    def filled(self) -> None: ...

    def step(self, rows_U: Rows, gradients_UW: Floats) -> None:
        ids_U, self._steps = ids_of(rows_U), self._steps + 1
        self._store.pull(ids_U)
        self._store.push(ids_U, gradients_UW, np.ones(len(ids_U), np.uint32), examples=1.0, step=self._steps)

    def settle(self) -> None:
        self._store.tier.settle()

    def weights(self, rows_U: Rows) -> Floats:
        return self._store.peek(ids_of(rows_U))

    def close(self) -> None: ...


if __name__ == "__main__":
    serve(GearshiftPath)
