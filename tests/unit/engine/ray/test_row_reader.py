"""Rows that a shard will be asked for are read from disk in a thread, and a request too many is dropped."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.table_store import MemoryStore
from gearshift.embedding.tier_figures import summary_of, tier_figures
from gearshift.engine.ray.row_reader import WAITING, RowReader
from tests.protocol.world import PARTS, whole_server


def test_rows_that_were_prefetched_are_in_memory_when_they_are_pulled(tmp_path: Path) -> None:
    server, ids = whole_server(1), np.arange(20_000, dtype=np.int64)
    store = MemoryStore(PARTS, seed=3, tier=ColdTier(tmp_path, 1 << 20, hot_rows=4096))
    server.stores = (store,)
    first = [store.pull(ids[at : at + 1000]) for at in range(0, len(ids), 1000)]
    store.tier.settle()
    reader, cold = RowReader(), ids[:1000]
    misses = store.tier.counts().misses
    reader.read(server, (cold,))
    reader.wait()
    assert store.tier.counts().prefetched > 500
    assert np.array_equal(store.pull(cold), first[0])
    assert store.tier.counts().misses - misses < 100, "they were read again"


def test_a_request_that_finds_no_room_is_dropped() -> None:
    class StuckTier:
        def __init__(self) -> None:
            self.asked, self.go = 0, threading.Event()

        def prefetch(self, ids_U: np.ndarray) -> None:
            self.go.wait(30)
            self.asked += 1
            raise OSError("the disk is gone")

    server, tier, reader = whole_server(1), StuckTier(), RowReader()
    server.stores = (SimpleNamespace(tier=tier),)
    for _ in range(3 * WAITING):
        reader.read(server, (np.arange(3, dtype=np.int64),))
    tier.go.set()
    reader.wait()
    assert 1 <= tier.asked <= WAITING + 1  # an error ends nothing: the pull will meet it


def test_a_reader_that_waits_keeps_no_store(tmp_path: Path) -> None:
    """Its memory is needed when another snapshot is loaded."""
    server, reader = whole_server(1), RowReader()
    server.stores = (MemoryStore(PARTS, seed=3, tier=ColdTier(tmp_path, 1 << 20, hot_rows=4096)),)
    kept = weakref.ref(server.stores[0])
    reader.read(server, (np.arange(3, dtype=np.int64),))
    reader.wait()
    del server
    gc.collect()
    assert kept() is None


def test_counts_of_several_shards_are_summed(tmp_path: Path) -> None:
    stores = [MemoryStore(PARTS, seed=3, tier=ColdTier(tmp_path, 2 << 20)) for _ in range(2)]
    for store in stores:
        store.pull(np.arange(10, dtype=np.int64))
    total = summary_of([tier_figures([store]) for store in stores] + [{"batches": 3.0}])
    assert total is not None and total.counts.hot_rows == 20
    assert total.counts == stores[0].tier.counts() + stores[1].tier.counts()
    assert summary_of([tier_figures(whole_server(1).stores)]) is None
