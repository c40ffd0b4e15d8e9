"""The coordinator's view of rows that it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gearshift.cluster.snapshots import Size
from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import RowStore

if TYPE_CHECKING:
    from gearshift.cluster.coordinate import Engine


class Elsewhere:
    """A store whose rows are on the shards: they can be looked at, and nothing else."""

    def __init__(self, store: RowStore, number: int, engine: Engine) -> None:
        self.parts, self.width, self.state_width = store.parts, store.width, store.state_width
        self._number, self._engine = number, engine
        self.size: Size = 0, 0  # in the newest checkpoint

    def __len__(self) -> int:
        return self.size[0]

    def memory_bytes(self) -> int:
        return self.size[1]

    def peek(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        stores, most = len(self._engine.learner.server.stores), self._engine.driver.endpoint.limits.ids
        found = [self._ask(ids_U[at : at + most], stores) for at in range(0, len(ids_U), most)]
        rows_UW = np.concatenate(found) if found else np.empty((0, self.width), np.float32)
        if out_UW is None:
            return rows_UW
        out_UW[:] = rows_UW
        return out_UW

    def _ask(self, ids_U: Ids, stores: int) -> Floats:
        nothing = np.empty(0, np.int64)
        return self._engine.peek(tuple(ids_U if i == self._number else nothing for i in range(stores)))[
            self._number
        ]
