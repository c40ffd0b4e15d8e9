"""The `DiskTier` of a `MemoryStore`: opens the table's cold tier, and passes on what is known about coming ids."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from gearshift._core import RowFileError, RowTable
from gearshift.embedding.array_checks import check_ids
from gearshift.embedding.cold_tier import ColdTier, TierFolder, allow_many_files, index_too_large
from gearshift.embedding.disk_errors import naming_disk_errors, naming_full_storage
from gearshift.embedding.memory_budget import INDEX_SHARE
from gearshift.embedding.row_files import link_files
from gearshift.embedding.store import MOST_TABLES, Ids, RowStack, TableLookups, TierCounts
from gearshift.errors import warn


class TableTier:
    """`DiskTier` describes each method.

    The files of a tier are opened only when its first row is about to be created, because many processes have stores
    that stay empty.
    """

    def __init__(self, table: RowTable, settings: ColdTier, tables: Sequence[str] = ()) -> None:
        """`tables` are the names of the tables whose rows are in the store, by their numbers from 1."""
        self.budget, self.folder = settings.budget, settings.folder
        self._table, self._settings, self._tables = table, settings, tuple(tables[:MOST_TABLES])
        self._opening, self._files = threading.Lock(), Path()
        self._is_open = self._has_warned = False

    def open(self) -> None:
        if self._is_open:
            return
        with self._opening:
            if self._is_open:
                return
            if self._settings.notice:
                warn(self._settings.notice)
            folder = TierFolder(self.folder)
            self._files = folder.path
            settings = self._settings
            self._table.add_cold_tier(
                str(folder.path), self.budget, settings.hot_rows, len(self._tables), settings.of_shards
            )
            _closers.append(weakref.finalize(self, _close, self._table, folder))
            allow_many_files()
            self._is_open = True

    def adopt(self, stack: RowStack) -> None:
        """Takes over the rows of these files, which are linked into the folder of the tier."""
        with naming_full_storage(self.folder):
            linked = link_files(stack.name, stack.files, self._files)
        try:
            self._table.adopt_files([str(file) for file in linked.files])
        except RowFileError as error:  # the error names a link, which is gone before the user can look
            sentence = str(error)
            for link, file in zip(linked.files, stack.files, strict=True):
                sentence = sentence.replace(str(link), str(file))
            raise RowFileError(sentence) from None

    def prefetch(self, ids_U: Ids) -> None:
        check_ids(ids_U)
        if self._is_open:
            with naming_disk_errors():
                self._table.prefetch(ids_U)

    def begin_chunk(self) -> None:
        if self._is_open:
            self._table.begin_chunk()

    def expect(self, ids_U: Ids) -> float:
        check_ids(ids_U)
        return self._table.expect(ids_U) if self._is_open else 0.0

    def load_expected(self) -> bool:
        with naming_disk_errors():
            return self._is_open and self._table.load_expected()

    def counts(self) -> TierCounts:
        counts = TierCounts(**self._table.tier_counts())
        if counts.index_bytes * INDEX_SHARE > self.budget and not self._has_warned:
            self._has_warned = True
            warn(index_too_large(self._settings, counts.index_bytes))
        return counts

    def lookups(self) -> dict[str, TableLookups]:
        if not self._is_open:
            return {}
        named = zip(("", *self._tables), self._table.lookups_by_table().tolist(), strict=True)
        return {table: TableLookups(*counts) for table, counts in named if any(counts)}

    def check(self) -> None:
        if self._is_open:
            with naming_disk_errors():
                self._table.check_cold_tier()

    def write_failure(self) -> str | None:
        return self._table.cold_write_failure() or None

    def settle(self) -> None:
        """Waits until evicted rows are written and files are merged (for tests and benchmarks)."""
        if self._is_open:
            self._table.settle_cold_tier()


_closers: list[weakref.finalize[..., TableTier]] = []  # of the tiers that were opened in this process


def close_tiers() -> None:
    """Removes the files of this process, which will not end in the usual way, because Ray kills it."""
    for close in _closers[:]:
        with contextlib.suppress(OSError):  # a disk that fails
            close()  # nothing, if its tier is gone


def _close(table: RowTable, folder: TierFolder) -> None:
    table.close_cold_tier()  # its thread writes no more files
    folder.close()
