"""Which ids each shard holds, for tests that play the workers of several shards."""

from __future__ import annotations

from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import Ids


def split_ids(shards: int, ids: tuple[Ids, ...]) -> list[tuple[Ids, ...]]:
    """The ids of each store, by shard."""
    by_store = [[own[at] for at in IdPlacement(own, shards).groups] for own in ids]
    return [tuple(of_store[s] for of_store in by_store) for s in range(shards)]
