"""What stores of other libraries lose when rows leave memory: rows of zeros, deletions, updates during a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.row_files import changes_in, write_changes
from gearshift.embedding.store import Ids, RowBlock, RowPart, RowSGD
from gearshift.embedding.table_store import MemoryStore
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.row_changes import applied, by_partition, changes
from tests.unit.embedding.row_reference import mix

LITTLE = 64 << 10  # buffers of 16 rows: files are written and merged all the time
PART = RowPart("embedding", 4, RowSGD(lr=1.0))
COUNTER = RowPart("embedding", 4, RowSGD(lr=1.0), init=0.0)  # a push of -1 adds 1
IDS = np.arange(3000, dtype=np.int64)
NEW = np.arange(20_000, 24_000, dtype=np.int64)
OTHERS = np.arange(10_000, 11_000, dtype=np.int64)


def tiered(folder: Path, part: RowPart = PART) -> MemoryStore:
    """With one row of each partition in memory."""
    return MemoryStore((part,), seed=1, tier=ColdTier(folder, LITTLE, hot_rows=1))


def push(store: MemoryStore, ids_U: Ids, sums_UW: np.ndarray, step: int = 1) -> None:
    store.push(ids_U, sums_UW, np.ones(len(ids_U), np.uint32), examples=1, step=step)


def make_zero(store: MemoryStore, ids_U: Ids) -> None:
    push(store, ids_U, store.pull(ids_U).copy())


def leave_memory(store: MemoryStore) -> None:
    """Other rows come, until rows that came before are in files that were merged several times."""
    before = store.tier.counts().merges
    for step in range(2, 14):
        push(store, OTHERS, np.ones((len(OTHERS), 4), np.float32), step)
    store.tier.settle()
    counts = store.tier.counts()
    assert counts.merges > before + 16 and counts.hot_rows <= 256


def come(store: MemoryStore) -> Ids:
    """So many new rows come that the newest files are merged, but not with the oldest, which are larger."""
    before = store.tier.counts().merges
    for some_U in np.split(NEW, 10):
        store.pull(some_U)
    store.tier.settle()
    counts = store.tier.counts()
    assert counts.merges > before and counts.files > 16  # several in each of the 16 groups of partitions
    return NEW


def saved(store: MemoryStore, path: Path) -> Checkpoint:
    with store.cut() as cut:
        checkpoint.write(path, {}, {}, {"rows0": cut})
    return Checkpoint.open(path)


def reloaded(at: Checkpoint, folder: Path) -> Iterator[MemoryStore]:
    """By links to its files, by their rows in memory, and row by row."""
    for store in (tiered(folder), MemoryStore((PART,), seed=1)):
        assert store.adopt(at.stacks("rows0"))
        yield store
    by_rows = tiered(folder)
    for block in at.rows("rows0"):
        by_rows.load(block)
    yield by_rows


def ids_of(blocks: Iterator[RowBlock] | Sequence[RowBlock]) -> set[int]:
    return {int(i) for block in blocks for i in block.ids_U}


def test_an_all_zero_row_survives(tmp_path: Path, disk: str) -> None:
    """Evicted, merged, saved, and loaded again."""
    store = tiered(tmp_path / "rows")
    make_zero(store, IDS)

    def assert_zero_rows(store: MemoryStore) -> None:
        assert store.contains(IDS).all() and len(store) == len(IDS) + len(OTHERS)
        assert not store.peek(IDS).any()
        assert not store.pull(IDS).any() and len(store) == len(IDS) + len(OTHERS)
        steps = {int(i): int(s) for b in store.blocks() for i, s in zip(b.ids_U, b.last_step_U, strict=True)}
        assert {steps[i] for i in IDS.tolist()} == {1}

    leave_memory(store)
    assert_zero_rows(store)
    at = saved(store, tmp_path / "saved")
    for again in reloaded(at, tmp_path / "again"):
        assert_zero_rows(again)
        if again.tier is not None:
            leave_memory(again)
            assert_zero_rows(again)


def test_a_delete_differs_from_a_zero_row(tmp_path: Path, disk: str) -> None:
    """Some rows are deleted, others become zeros: evicted, merged, in a checkpoint, and in a delta."""
    store = tiered(tmp_path / "rows")
    births_UW = store.pull(IDS).copy()
    push(store, IDS, np.ones((len(IDS), 4), np.float32))
    leave_memory(store)
    base = saved(store, tmp_path / "base")
    deleted_U, zero_U = IDS[::8].copy(), IDS[1::8].copy()
    make_zero(store, zero_U)
    assert store.erase(deleted_U) == len(deleted_U)
    expected = {*IDS.tolist(), *OTHERS.tolist()} - {*deleted_U.tolist()}

    def assert_deleted(store: MemoryStore) -> None:
        np.testing.assert_array_equal(store.contains(IDS), IDS % 8 != 0)
        assert len(store) == len(expected)
        np.testing.assert_array_equal(store.peek(deleted_U), births_UW[::8])
        assert not store.peek(zero_U).any()
        assert store.erase(deleted_U) == 0

    assert_deleted(store)
    expected |= {*come(store).tolist()}
    assert_deleted(store)
    leave_memory(store)
    assert_deleted(store)
    full = saved(store, tmp_path / "full")
    assert ids_of([*full.rows("rows0")]) == expected
    for again in reloaded(full, tmp_path / "again"):
        assert_deleted(again)
        if again.tier is not None:
            leave_memory(again)
            assert_deleted(again)
        np.testing.assert_array_equal(again.pull(IDS)[::8], births_UW[::8])  # they are new rows
    (tmp_path / "delta").mkdir()
    difference = changes(by_partition(base.rows("rows0")), by_partition(full.rows("rows0")))
    delta = [each for s in write_changes(tmp_path / "delta", "rows0", difference) for each in changes_in(s)]
    assert set(np.concatenate([each.erased_U for each in delta]).tolist()) == set(deleted_U.tolist())
    zeros = [each.changed.weights_UW[np.isin(each.changed.ids_U, zero_U)] for each in delta]
    assert sum(map(len, zeros)) == len(zero_U) and not np.concatenate(zeros).any()
    rows = [block for _, block in applied(by_partition(base.rows("rows0")), iter(delta))]
    assert ids_of(rows) == expected


# ---- updates beside a slow read ----

OF_ONE_PARTITION = [i for i in range(20_000) if mix(i) >> 56 == 0]
HOT = np.array(OF_ONE_PARTITION[:48], np.int64)  # one of them is in memory
RACES, MOST_SECONDS, OWNERS = 50, 60.0, 2


class Racing:
    """Threads work on few rows until their reads were late often enough: a row came, changed, and left meanwhile."""

    def __init__(
        self, store: MemoryStore, works: Sequence[Callable[[np.random.Generator, int], None]]
    ) -> None:
        self.store, self.errors, self.over = store, list[Exception](), threading.Event()
        self.threads = [threading.Thread(target=self._repeat, args=(n, w)) for n, w in enumerate(works)]

    def _repeat(self, number: int, work: Callable[[np.random.Generator, int], None]) -> None:
        random, turn = np.random.default_rng(number), 0
        try:
            while not self.over.is_set():
                turn += 1
                work(random, turn)
        except Exception as error:
            self.errors.append(error)
            self.over.set()

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        end = time.monotonic() + MOST_SECONDS
        while not self.over.is_set() and time.monotonic() < end and self.store.tier.counts().retries < RACES:
            self.over.wait(0.02)
        self.over.set()
        for thread in self.threads:
            thread.join(120)
        assert not self.errors and not any(thread.is_alive() for thread in self.threads)
        assert self.store.tier.counts().retries >= RACES, "no read was late"


def some(random: np.random.Generator, ids_U: Ids, most: int) -> Ids:
    return random.choice(ids_U, int(random.integers(1, most + 1)), replace=False)


def look_ahead(store: MemoryStore, ids_U: Ids, random: np.random.Generator) -> None:
    store.tier.prefetch(some(random, ids_U, 8))
    store.tier.begin_chunk()
    store.tier.expect(some(random, ids_U, 8))
    while store.tier.load_expected():
        pass


def test_a_late_load_never_overwrites_a_newer_update(tmp_path: Path, disk: str) -> None:
    """Each push adds one to every weight, in any order: the sum tells whether one was lost."""
    store = tiered(tmp_path, COUNTER)
    pushes, lock = np.zeros(len(HOT), np.int64), threading.Lock()

    def add(random: np.random.Generator, turn: int) -> None:
        ids_U = some(random, HOT, 8)
        push(store, ids_U, np.full((len(ids_U), 4), -1, np.float32), turn)
        with lock:
            pushes[np.searchsorted(HOT, ids_U)] += 1

    def read(random: np.random.Generator, turn: int) -> None:
        look_ahead(store, HOT, random)
        store.pull(some(random, HOT, 8))

    Racing(store, [add, add, read, read]).run()
    assert pushes.sum() > RACES
    np.testing.assert_array_equal(store.pull(HOT), np.repeat(pushes[:, None], 4, 1).astype(np.float32))


def test_a_late_load_brings_back_neither_an_older_nor_a_deleted_row(tmp_path: Path, disk: str) -> None:
    """Each row is changed and deleted by one thread, which looks at it each time, while others load it ahead."""
    store = tiered(tmp_path, COUNTER)

    def owner(number: int) -> Callable[[np.random.Generator, int], None]:
        own_U, pushes = HOT[number::OWNERS].copy(), dict.fromkeys(HOT.tolist(), 0)

        def change(random: np.random.Generator, turn: int) -> None:
            ids_U = some(random, own_U, 8)
            if random.random() < 0.25:
                assert store.erase(ids_U) == sum(pushes[i] > 0 for i in ids_U.tolist())
                pushes.update(dict.fromkeys(ids_U.tolist(), 0))
            else:
                push(store, ids_U, np.full((len(ids_U), 4), -1, np.float32), turn)
                pushes.update({i: pushes[i] + 1 for i in ids_U.tolist()})
            expected_U = np.array([pushes[i] for i in own_U.tolist()])
            np.testing.assert_array_equal(store.contains(own_U), expected_U > 0)
            np.testing.assert_array_equal(store.peek(own_U)[:, 0], expected_U.astype(np.float32))

        return change

    def read(random: np.random.Generator, turn: int) -> None:
        look_ahead(store, HOT, random)

    Racing(store, [owner(0), owner(1), read, read]).run()
