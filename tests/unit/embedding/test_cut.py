"""A cut under load: it has the state between two pushes, whatever happens while it is read."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad, RowPart, RowSGD
from gearshift.embedding.table_store import MemoryStore
from tests.unit.embedding.row_reference import rows_of


def ones(n: int) -> np.ndarray:
    return np.ones(n, np.uint32)


def test_a_cut_falls_between_pushes_while_threads_push_erase_and_give_birth() -> None:
    """Every push adds 1 to all of the first ids, so a cut inside a push would show two different values."""
    store = MemoryStore([RowPart("embedding", 16, RowSGD(lr=1.0), init=0.0)], seed=0)
    fixed = np.arange(3000, dtype=np.int64)
    store.pull(fixed)
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as failure:
            failures.append(failure)

    def push_all() -> None:
        store.push(fixed, np.full((len(fixed), 16), -1, np.float32), ones(len(fixed)), examples=1, step=1)

    rng = np.random.default_rng(0)

    def come_and_go() -> None:
        ids = np.unique(rng.integers(10_000, 60_000, 3000))
        store.pull(ids)
        store.erase(ids[::2].copy())

    threads = [threading.Thread(target=guarded, args=(w,)) for w in (push_all, push_all, come_and_go)]
    for t in threads:
        t.start()
    for _ in range(12):
        with store.cut() as cut:
            rows = rows_of(cut)
        assert len(rows) == len(cut)
        values = {rows[i][0][0] for i in fixed.tolist()}
        assert len(values) == 1
        assert all(set(rows[i][0]) == values and rows[i][4] == values.copy().pop() for i in fixed.tolist())
        assert all(rows[i][0] == [0.0] * 16 for i in rows if i >= 10_000)
    stop.set()
    for t in threads:
        t.join()
    assert not failures


def test_rows_erased_and_born_again_under_a_cut_show_as_they_were() -> None:
    store = MemoryStore([RowPart("embedding", 16, RowAdagrad())], seed=0)
    ids = np.arange(2000, dtype=np.int64)
    store.push(ids, np.ones((2000, 16), np.float32), ones(2000), examples=1, step=5)
    before = rows_of(store.blocks())
    cut = store.cut()
    store.erase(ids[:1500])
    store.pull(ids[:1000])
    store.push(ids[500:], np.ones((1500, 16), np.float32), ones(1500), examples=1, step=6)
    assert rows_of(cut) == before
    cut.close()


def test_after_a_cut_erased_places_are_used_again() -> None:
    store = MemoryStore([RowPart("embedding", 16, RowSGD())], seed=0)
    ids = np.arange(50_000, dtype=np.int64)
    store.pull(ids)
    for turn in range(6):
        with store.cut():
            store.erase(ids + turn * 50_000)
        store.pull(ids + (turn + 1) * 50_000)
        if turn == 1:
            steady = store.memory_bytes()
    assert store.memory_bytes() < 1.4 * steady


def test_a_cut_is_read_once_and_not_after_closing() -> None:
    store = MemoryStore([RowPart("embedding", 4, RowSGD())], seed=0)
    store.pull(np.arange(1000))
    cut = store.cut()
    assert len(rows_of(cut)) == 1000
    with pytest.raises(ValueError, match="a cut is read once"):
        list(cut)
    cut.close()
    cut.close()
    with pytest.raises(ValueError, match="closed"):
        list(cut)


@pytest.mark.parametrize("tiered", [False, True])
def test_groups_of_a_cut_are_written_in_their_order(tmp_path: Path, tiered: bool) -> None:
    """What a group keeps on disk is let go when a later one is written: its rows would be missing."""
    tier = ColdTier(tmp_path / "rows", 4 << 20, hot_rows=256) if tiered else None
    store = MemoryStore([RowPart("embedding", 4, RowSGD())], seed=0, tier=tier)
    store.pull(np.arange(20_000))
    cut, table = store.cut(), store._table
    assert table.write_cut_groups(3, 4, str(tmp_path / "three.gsr"))
    with pytest.raises(ValueError, match="groups of a cut are written in their order"):
        table.write_cut_groups(1, 2, str(tmp_path / "one.gsr"))
    with pytest.raises(ValueError, match="a cut is read once"):
        table.read_cut_partition(16)
    assert table.write_cut_groups(5, 6, str(tmp_path / "five.gsr"))
    cut.close()


def test_a_forgotten_cut_does_not_block_the_next() -> None:
    store = MemoryStore([RowPart("embedding", 4, RowSGD())], seed=0)
    store.cut()
    store.cut().close()


def test_a_cut_costs_memory_only_for_rows_moved_meanwhile() -> None:
    store = MemoryStore([RowPart("embedding", 16, RowSGD())], seed=0)
    ids = np.arange(100_000, dtype=np.int64)
    store.pull(ids)
    before = store.memory_bytes()
    with store.cut():
        assert store.memory_bytes() < 1.01 * before
        store.push(ids[:10_000], np.ones((10_000, 16), np.float32), ones(10_000), examples=1, step=1)
        assert 10_000 * 64 < store.memory_bytes() - before < 10_000 * 64 * 4
    assert store.memory_bytes() < 1.01 * before
