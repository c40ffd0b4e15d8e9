"""Lookups of a store with a disk tier, by table: in the store, summed over shards, and as metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.sharded import ShardedStore
from gearshift.embedding.store import RowAdagrad, RowPart, RowStore, TableLookups
from gearshift.embedding.table_store import MemoryStore
from gearshift.embedding.tier_figures import summary_of, tier_figures, tier_summary

PARTS = (RowPart("embedding", 8, RowAdagrad(lr=0.1)),)
IDS = np.arange(20_000, dtype=np.int64)
TABLES = (1 + (IDS >= 4000)).astype(np.uint16)  # "user" has 4,000 rows, "ad" the others


def tiered(folder: Path, hot_rows: int = 4096) -> MemoryStore:
    return MemoryStore(
        PARTS, seed=1, tier=ColdTier(folder, 4 << 20, hot_rows=hot_rows), tables=("user", "ad", "unused")
    )


def ask(store: RowStore, ids_U: np.ndarray) -> None:
    store.pull(ids_U, tables_U=TABLES[ids_U])


def born(store: MemoryStore) -> MemoryStore:
    for at in range(0, len(IDS), 1000):
        ask(store, IDS[at : at + 1000])
    store.tier.settle()
    return store


def test_each_table_has_the_lookups_of_its_own_ids(tmp_path: Path) -> None:
    store = born(tiered(tmp_path))
    new = store.tier.lookups()
    assert new == {"user": TableLookups(4000, 4000, 0), "ad": TableLookups(16_000, 16_000, 0)}
    mixed = np.concatenate([IDS[:500], IDS[19_000:]])
    ask(store, mixed)
    ask(store, mixed)
    user, ad = store.tier.lookups()["user"], store.tier.lookups()["ad"]
    assert (user.lookups, ad.lookups) == (5000, 18_000)
    assert user.misses == 4000 + user.loads and user.loads > 100, "its rows were the first to leave"
    assert ad.misses == 16_000 + ad.loads and ad.loads < 1000
    total = store.tier.counts()
    assert (total.lookups, total.misses) == (user.lookups + ad.lookups, user.misses + ad.misses)
    assert 0 < total.rows_read <= user.loads + ad.loads, "some were about to be written"
    assert user.ratios()["hit_rate"] == 1 - user.misses / 5000


def test_rows_that_are_loaded_ahead_are_found_in_memory_and_still_count_as_loaded(tmp_path: Path) -> None:
    store = born(tiered(tmp_path))
    before = store.tier.lookups()["user"]
    store.tier.prefetch(IDS[:500])
    ask(store, IDS[:500])
    after = store.tier.lookups()["user"]
    assert after.misses == before.misses and after.lookups == before.lookups + 500
    assert after.loads - before.loads > 100


def test_ids_without_a_table_are_counted_apart(tmp_path: Path) -> None:
    store = tiered(tmp_path)
    store.pull(IDS[:100])
    ask(store, IDS[:40])
    assert store.tier.lookups() == {"": TableLookups(100, 100, 0), "user": TableLookups(40, 0, 0)}


def test_shards_and_processes_are_summed(tmp_path: Path) -> None:
    whole, shards = born(tiered(tmp_path / "whole", 30_000)), [tiered(tmp_path, 30_000) for _ in range(3)]
    together = ShardedStore(shards)
    for at in range(0, len(IDS), 1000):
        ask(together, IDS[at : at + 1000])
    assert together.tier is not None
    assert together.tier.lookups() == whole.tier.lookups()
    figures = [tier_figures([shard]) for shard in shards]
    assert figures[0]["tier/lookups/user"] == shards[0].tier.lookups()["user"].lookups > 0
    assert summary_of([*figures, {"batches": 3.0}]) == tier_summary(shards) == tier_summary([together])
    assert summary_of([{"batches": 3.0}]) is None and tier_summary([MemoryStore(PARTS, seed=1)]) is None
