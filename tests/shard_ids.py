"""Which rows each shard holds, for tests that play the workers of several shards."""

from __future__ import annotations

import numpy as np

from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import Ids
from gearshift.engine.protocol.messages import WantedRows


def split_ids(shards: int, ids: tuple[Ids, ...]) -> list[WantedRows]:
    """The ids of each store, by shard; their tables are unknown."""
    by_store = [[own[at] for at in IdPlacement(own, shards).groups] for own in ids]
    return [wanted(tuple(of_store[s] for of_store in by_store)) for s in range(shards)]


def wanted(ids: tuple[Ids, ...]) -> WantedRows:
    return WantedRows(ids, tuple(np.zeros(len(own), np.uint16) for own in ids))
