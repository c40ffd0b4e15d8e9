"""The coordinator's view of rows that it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import RowFTRL, RowStore
from gearshift.engine.ray.snapshots import Size

if TYPE_CHECKING:
    from gearshift.engine.ray.coordinator_process import RayEngine


class RemoteRows:
    """A store whose rows are on the shards: they can be looked at, and nothing else."""

    def __init__(self, store: RowStore, number: int, engine: RayEngine) -> None:
        self.parts, self.width, self.state_width = store.parts, store.width, store.state_width
        self._number, self._engine, self._unmoved = number, engine, store
        self.size: Size = 0, 0  # in the newest checkpoint

    def __len__(self) -> int:
        return self.size[0]

    def memory_bytes(self) -> int:
        return self.size[1]

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]:
        """Whether rows were trained: they are no longer as they are born.

        L1 may hold a trained weight at zero, where it was born: such columns tell nothing.
        """
        tells = [not (isinstance(part.optimizer, RowFTRL) and part.optimizer.l1) for part in self.parts]
        columns = np.repeat(tells, [part.width for part in self.parts])
        if not columns.any():
            return np.ones(len(ids_U), np.bool_)
        moved_U = (self.peek(ids_U) != self._unmoved.peek(ids_U))[:, columns].any(1)
        known_U: NDArray[np.bool_] = moved_U | self._unmoved.contains(ids_U)  # or from another run
        return known_U

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
