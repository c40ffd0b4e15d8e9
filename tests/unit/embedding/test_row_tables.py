"""Each row knows the table of its id: from the fields of a batch to the row, its checkpoint and its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gearshift.data.batch import Batch, Ragged
from gearshift.data.schema import Bag, Categorical, Schema, Sequence
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.lookup import field_groups, find
from gearshift.embedding.sharded import ShardedStore
from gearshift.embedding.store import MOST_TABLES, RowAdagrad, RowBlock, RowPart, RowStore
from gearshift.embedding.table_store import MemoryStore
from gearshift.parameters import checkpoint
from gearshift.parameters.merged_rows import merge_rows
from gearshift.parameters.push import RowPush

PARTS = (RowPart("embedding", 8, RowAdagrad(lr=0.1)), RowPart("linear", 1, RowAdagrad(lr=0.1), 0.0))
IDS = np.arange(1, 2001) * 7919
TABLES = (IDS % 5 + 1).astype(np.uint16)


def tables_of(store: RowStore) -> dict[int, int]:
    return {
        int(i): int(table)
        for block in store.blocks()
        for i, table in zip(block.ids_U, block.tables_U, strict=True)
    }


EXPECTED = dict(zip(IDS.tolist(), TABLES.tolist(), strict=True))


def pushed(store: RowStore, tables_U: np.ndarray | None, step: int = 1) -> RowStore:
    sums_UW, counts_U = np.ones((len(IDS), store.width), np.float32), np.ones(len(IDS), np.uint32)
    store.push(IDS, sums_UW, counts_U, examples=1, step=step, tables_U=tables_U)
    return store


def small(folder: Path) -> MemoryStore:
    return MemoryStore(PARTS, seed=1, tier=ColdTier(folder, 8 << 20, hot_rows=256))


MAKERS: list[Callable[[Path], RowStore]] = [
    lambda folder: MemoryStore(PARTS, seed=1),
    lambda folder: MemoryStore(PARTS, seed=1, portable=True),
    lambda folder: ShardedStore([MemoryStore(PARTS, seed=1) for _ in range(3)]),
    small,
]


@pytest.mark.parametrize("make", MAKERS, ids=["whole", "portable", "sharded", "with a cold tier"])
def test_a_row_keeps_the_table_of_its_id(tmp_path: Path, make: Callable[[Path], RowStore]) -> None:
    by_pull, by_push = make(tmp_path / "a"), make(tmp_path / "b")
    by_pull.pull(IDS, tables_U=TABLES)
    assert tables_of(by_pull) == EXPECTED
    pushed(by_pull, None, step=2)
    assert tables_of(by_pull) == EXPECTED == tables_of(pushed(by_push, TABLES))


def test_a_row_of_unknown_table_learns_it_when_it_is_pushed() -> None:
    store = MemoryStore(PARTS, seed=1)
    store.pull(IDS)
    assert set(tables_of(store).values()) == {0}
    pushed(store, TABLES)
    assert tables_of(store) == EXPECTED
    pushed(store, np.full(len(IDS), 9, np.uint16))
    assert tables_of(store) == EXPECTED  # it has one already


def test_the_largest_table_leaves_the_other_counts_alone() -> None:
    store = MemoryStore(PARTS, seed=1)
    for step in (1, 2, 3):
        pushed(store, np.full(len(IDS), MOST_TABLES, np.uint16), step)
    (block,) = [b for b in store.blocks() if IDS[0] in b.ids_U]
    at = block.ids_U == IDS[0]
    found = (block.touches_U[at], block.last_step_U[at], block.updates_U[at], block.tables_U[at])
    assert [int(x[0]) for x in found] == [3, 3, 3, MOST_TABLES]


@pytest.mark.parametrize("make", [MAKERS[0], small], ids=["as columns", "as row files"])
def test_checkpoints_keep_the_tables(tmp_path: Path, make: Callable[[Path], RowStore]) -> None:
    store = pushed(make(tmp_path / "rows"), TABLES)
    cut = store.cut()
    checkpoint.write(tmp_path / "saved", {}, {}, {"rows0": cut})
    cut.close()
    restored = MemoryStore(PARTS, seed=2)
    for block in checkpoint.Checkpoint.open(tmp_path / "saved").rows("rows0"):
        restored.load(block)
    assert tables_of(restored) == EXPECTED


def test_a_checkpoint_without_tables_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(checkpoint.ROWS, "tables")
    checkpoint.write(tmp_path / "old", {}, {}, {"rows0": pushed(MemoryStore(PARTS, seed=1), None).blocks()})
    monkeypatch.undo()
    blocks = list(checkpoint.Checkpoint.open(tmp_path / "old").rows("rows0"))
    assert sum(len(block.tables_U) for block in blocks) == len(IDS)
    assert not any(block.tables_U.any() for block in blocks)


def test_a_batch_knows_the_table_of_each_id() -> None:
    schema = Schema(
        (
            Categorical("item"),
            Categorical("country"),
            Sequence("history", share_embedding="item"),
            Bag("tags"),
            Categorical("narrow", dim=4),
        )
    )
    wide, narrow = field_groups(schema, 8)
    assert wide.tables == ("item", "country", "tags") and narrow.tables == ("narrow",)
    history = Ragged(np.array([11, 12, 10]), np.array([0, 2, 3]))
    tags = Ragged(np.array([31]), np.array([0, 0, 1]))
    ids_BF = np.array([[10, 20, 40], [11, 21, 41]])
    none = np.zeros((2, 0), np.float32)
    batch = Batch(0, np.zeros((2, 1), np.float32), none, ids_BF, (history, tags))
    found = find(batch, (wide, narrow))
    by_id = dict(zip(found.ids[0].tolist(), found.tables[0].tolist(), strict=True))
    assert by_id == {10: 1, 11: 1, 12: 1, 20: 2, 21: 2, 31: 3}
    assert found.tables[1].tolist() == [1, 1] and found.tables[0].dtype == np.uint16


def test_more_tables_than_a_row_can_be_marked_with_are_unknown() -> None:
    (group,) = field_groups(Schema(tuple(Categorical(f"c{i}") for i in range(MOST_TABLES + 2))), 8)
    assert group.single_tables[-3:] == (MOST_TABLES, 0, 0)


def test_the_pushes_of_a_step_are_merged_with_their_tables() -> None:
    def push(*ids: int) -> RowPush:
        ids_U = np.array(ids)
        ones = np.ones((len(ids), 2), np.float32)
        return RowPush(ids_U, ones, ones[:, 0].astype(np.uint32), tables_U=(ids_U // 10).astype(np.uint16))

    merged = merge_rows([(push(10, 30), 1.0, 2.0), (push(20, 30, 11), 1.0, 2.0)], threads=1)
    assert (merged.ids_U // 10).tolist() == merged.tables_U.tolist()


def test_arrays_of_another_shape_are_refused() -> None:
    store = MemoryStore(PARTS, seed=1)
    with pytest.raises(ValueError, match="tables must have shape"):
        store.pull(IDS, tables_U=TABLES[:-1])
    with pytest.raises(TypeError, match="tables must be uint16, not int64"):
        pushed(store, TABLES.astype(np.int64))
    block = next(pushed(store, TABLES).blocks())
    with pytest.raises(ValueError, match="tables must have shape"):
        store.load(RowBlock(*list(vars(block).values())[:6], np.ones(len(block.ids_U) + 1, np.uint16)))
