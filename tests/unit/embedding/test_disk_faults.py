"""A disk that is full: rows stay readable in memory until they can be written, and checkpoints have them. And files
that are gone.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.disk_errors import LostRows
from gearshift.embedding.row_files import blocks_of
from gearshift.embedding.store import RowPart, RowSGD
from gearshift.embedding.table_store import MemoryStore
from gearshift.embedding.tier_figures import UNWRITTEN, tier_figures
from gearshift.errors import UserError
from gearshift.run.storage_watch import StorageWatch
from tests.small_disk import SmallDisk, small_disk

PART = RowPart("embedding", 16, RowSGD(lr=1.0), init=0.0)
ROWS = 8_000  # a step evicts less than what may wait unwritten


def store_on(disk: SmallDisk) -> MemoryStore:
    return MemoryStore((PART,), seed=1, tier=ColdTier(disk.path / "rows", 4 << 20, hot_rows=256))


def add_one(store: MemoryStore, step: int) -> None:
    ids_U = np.arange(ROWS)
    sums_UW = np.full((ROWS, 16), -1, np.float32)
    store.push(ids_U, sums_UW, np.ones(ROWS, np.uint32), examples=1, step=step)


def wait_until_noticed(store: MemoryStore) -> str:
    end = time.monotonic() + 60
    while (failure := store.tier.write_failure()) is None and time.monotonic() < end:
        time.sleep(0.05)
    assert failure is not None
    return failure


def test_a_full_disk_loses_nothing_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = store_on(disk)
        add_one(store, 1)
        assert store.tier.write_failure() is None
        disk.fill()
        add_one(store, 2)
        assert "cannot be written: No space left on device" in wait_until_noticed(store)
        assert tier_figures([store])[UNWRITTEN] == 1.0
        np.testing.assert_array_equal(store.pull(np.arange(ROWS)), 2.0)
        disk.free()
        end = time.monotonic() + 60
        while store.tier.write_failure() is not None and time.monotonic() < end:
            time.sleep(0.05)
        add_one(store, 3)
        store.tier.settle()
        assert store.tier.write_failure() is None and tier_figures([store])[UNWRITTEN] == 0.0
        np.testing.assert_array_equal(store.pull(np.arange(ROWS)), 3.0)
        del store


def test_a_checkpoint_elsewhere_has_the_rows_that_do_not_fit_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = store_on(disk)
        add_one(store, 1)
        disk.fill()
        add_one(store, 2)
        wait_until_noticed(store)
        (tmp_path / "checkpoint").mkdir()
        with store.cut() as cut:
            stacks = cut.write_files(tmp_path / "checkpoint", "rows0")
        assert stacks is not None
        blocks = [block for stack in stacks for block in blocks_of(stack)]
        assert sorted(int(i) for block in blocks for i in block.ids_U) == list(range(ROWS))
        for block in blocks:
            np.testing.assert_array_equal(block.weights_UW, 2.0)
        del store


def test_far_too_much_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = store_on(disk)
        add_one(store, 1)
        disk.fill()
        with pytest.raises(
            UserError,
            match=r"rows on disk: .*: No space left on device\. Resume .*with storage\.path=/other/folder$",
        ):
            for step in range(2, 40):
                add_one(store, step)
        del store


def test_a_merge_without_room_is_put_off(tmp_path: Path) -> None:
    """Files of the rows fit on the disk, a second copy of all of them does not."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        store = store_on(disk)
        for step in range(1, 8):
            add_one(store, step)
            if store.tier.write_failure() is not None:
                break
        np.testing.assert_array_equal(store.pull(np.arange(ROWS)), float(step))
        del store


def test_a_checkpoint_that_does_not_fit_into_the_storage_names_the_storage(tmp_path: Path) -> None:
    """The copy of its files fails, and the system's error names what is copied."""
    store = MemoryStore((PART,), seed=1, tier=ColdTier(tmp_path / "rows", 4 << 20, hot_rows=256))
    add_one(store, 1)
    (tmp_path / "checkpoint").mkdir()
    with store.cut() as cut:
        stacks = cut.write_files(tmp_path / "checkpoint", "rows0")
    with small_disk(tmp_path / "disk") as disk:
        restored = store_on(disk)
        restored.tier.open()
        disk.fill()
        with pytest.raises(
            UserError, match=r"^storage\.path: no space is left on .*disk/rows .*storage\.path=/"
        ):
            restored.adopt(stacks)
        del restored


def test_a_checkpoint_of_rows_that_were_deleted_is_given_up(tmp_path: Path) -> None:
    """Their files cannot come back. A folder of checkpoints that is away may."""
    store = MemoryStore((PART,), seed=1, tier=ColdTier(tmp_path / "rows", 4 << 20, hot_rows=256))
    add_one(store, 1)
    store.tier.settle()
    with store.cut() as cut, pytest.raises(FileNotFoundError):
        cut.write_files(tmp_path / "away", "rows0")
    (tmp_path / "rows").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoint").mkdir()
    with (
        store.cut() as cut,
        pytest.raises(
            LostRows, match=r"^rows on disk: .*gsr: No such file .* deleted during the run\. Resume"
        ),
    ):
        cut.write_files(tmp_path / "checkpoint", "rows0")


def merge_damaged_files(store: MemoryStore, folder: Path) -> None:
    """Flips a bit in each file, and writes more files until these are merged. No lookup goes to the damaged ones."""
    store.tier.settle()
    damaged = list(folder.glob("rows-*/rows-*.gsr"))
    newer_U = np.arange(ROWS, ROWS + 2000)
    store.pull(newer_U)
    for file in damaged:
        content = bytearray(file.read_bytes())
        content[200] ^= 1
        file.write_bytes(content)
    with contextlib.suppress(LostRows):
        for _ in range(10):
            store.push(newer_U, np.ones((2000, 16), np.float32), np.ones(2000, np.uint32), examples=1, step=2)
            store.cut().close()  # what waits in buffers goes to files
    assert ".gsr is damaged: the checksum of block" in wait_until_noticed(store)


def damaged_store(tmp_path: Path) -> MemoryStore:
    store = MemoryStore((PART,), seed=1, tier=ColdTier(tmp_path / "rows", 4 << 20, hot_rows=256))
    add_one(store, 1)
    merge_damaged_files(store, tmp_path / "rows")
    return store


def test_no_checkpoint_is_written_with_rows_that_a_merge_found_damaged(tmp_path: Path) -> None:
    """Otherwise it would be the last one, and `checkpoint.keep` would remove an intact one for it."""
    store = damaged_store(tmp_path)
    for _ in range(2):
        with pytest.raises(LostRows, match=r"^rows on disk: .*gsr is damaged: .*Resume the run"):
            store.cut()
    with pytest.raises(LostRows, match=r"gsr is damaged"):
        list(store.blocks())
    assert tier_figures([store])[UNWRITTEN] == 1.0


def test_rows_that_a_merge_found_damaged_end_the_run_at_once(tmp_path: Path) -> None:
    store = damaged_store(tmp_path)
    server = SimpleNamespace(stores=(store,))
    training = SimpleNamespace(baseline=SimpleNamespace(learner=None), learner=SimpleNamespace(server=server))
    with pytest.raises(LostRows, match=r"^rows on disk: .*gsr is damaged: .*Resume the run"):
        StorageWatch(cast(Any, training), dict).look()
