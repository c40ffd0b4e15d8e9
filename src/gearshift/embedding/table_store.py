"""The store in memory, with an optional cold tier on disk: a `RowStore` on top of the C++ table, which does the work.

This module checks arguments, so that a wrong array gives a clear error instead of a crash or a silent copy, and
turns the table's partitions into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gearshift._core import RowPartSpec, RowTable
from gearshift.data.schema import MOST_DIM
from gearshift.embedding.array_checks import check, check_ids, check_tables
from gearshift.embedding.cold_tier import ColdTier, check_budget
from gearshift.embedding.disk_errors import naming_disk_errors, naming_lost_files
from gearshift.embedding.memory_budget import LITTLE_MEMORY
from gearshift.embedding.row_files import (
    ANY_LAYOUT,
    FILE_BYTES,
    GROUPS,
    PARTITIONS,
    SUFFIX,
    groups_of,
    layout_of,
    link_files,
)
from gearshift.embedding.row_rules import RowRule, RuleState, saved
from gearshift.embedding.store import Floats, Ids, RowBlock, RowPart, RowStack, Tables
from gearshift.embedding.table_lifetimes import TableLifetimes
from gearshift.embedding.table_tier import TableTier
from gearshift.errors import UserError

RESTORING_THREADS = 4  # each reads and verifies one stack of files at a time


class MemoryStore:
    """Rows in the memory of this process, and those that do not fit on disk. `RowStore` describes each method."""

    def __init__(
        self,
        parts: Sequence[RowPart],
        *,
        seed: int,
        portable: bool = False,
        tier: ColdTier | None = None,
        rules: Sequence[RowRule] = (),
        tables: Sequence[str] = (),
    ) -> None:
        """`portable` disables AVX2, with the same results (for tests). Without a `tier` all rows stay in memory.

        `rules` are those of admission and expiry, by the number of a table; with any, pulls create no rows. `tables`
        are the names of the tables, by their numbers from 1, for the figures of the tier.
        """
        _check_parts(parts)
        self.parts = tuple(parts)
        little_memory = tier is not None and tier.budget < LITTLE_MEMORY
        self._table = RowTable([_spec(part) for part in parts], seed & (2**64 - 1), portable, little_memory)
        self.lifetimes = TableLifetimes(self._table, rules)
        self.width = self._table.width
        self.state_width = self._table.state_width
        self.tier: TableTier | None = None
        if tier is not None:
            check_budget(tier, self.width + self.state_width, self.lifetimes.sketch_bytes)
            self.tier = TableTier(self._table, tier, tables)

    def __len__(self) -> int:
        return len(self._table)

    def pull(
        self, ids_U: Ids, out_UW: Floats | None = None, *, tables_U: Tables | None = None, threads: int = 1
    ) -> Floats:
        out_UW = self._rows_for(ids_U, out_UW)
        check_tables(tables_U, len(ids_U))
        if self.tier is not None:
            self.tier.open()
        with naming_disk_errors():
            self._table.pull(ids_U, tables_U, out_UW, threads)
        return out_UW

    def peek(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        out_UW = self._rows_for(ids_U, out_UW)
        with naming_disk_errors():
            self._table.peek(ids_U, out_UW, threads)
        return out_UW

    def push(
        self,
        ids_U: Ids,
        sums_UW: Floats,
        counts_U: NDArray[np.uint32],
        *,
        examples: float,
        step: int,
        lr_scale: float = 1.0,
        tables_U: Tables | None = None,
        threads: int = 1,
    ) -> None:
        check_ids(ids_U)
        check("sums", sums_UW, np.float32, (len(ids_U), self.width))
        check("counts", counts_U, np.uint32, (len(ids_U),))
        check_tables(tables_U, len(ids_U))
        if not 0 <= step < 2**32:
            raise ValueError(f"step must be between 0 and 2**32, not {step}")
        if self.tier is not None:
            self.tier.open()
        with naming_disk_errors():
            self._table.push(ids_U, tables_U, sums_UW, counts_U, examples, step, lr_scale, threads)

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]:
        check_ids(ids_U)
        out_U = np.empty(len(ids_U), np.bool_)
        with naming_disk_errors():
            self._table.contains(ids_U, out_U)
        return out_U

    def last_steps(self, ids_U: Ids) -> NDArray[np.uint32]:
        check_ids(ids_U)
        out_U = np.empty(len(ids_U), np.uint32)
        with naming_disk_errors():
            self._table.last_steps(ids_U, out_U)
        return out_U

    def erase(self, ids_U: Ids) -> int:
        check_ids(ids_U)
        with naming_disk_errors():
            return self._table.erase(ids_U)

    def blocks(self) -> Iterator[RowBlock]:
        for partition in range(PARTITIONS):
            with naming_disk_errors():
                block = RowBlock(*self._table.read_partition(partition))
            if len(block.ids_U):
                yield block

    def load(self, block: RowBlock) -> None:
        check("block.ids_U", block.ids_U, np.int64, (None,))
        rows = len(block.ids_U)
        check("block.weights_UW", block.weights_UW, np.float32, (rows, self.width))
        check("block.state_US", block.state_US, np.float32, (rows, self.state_width))
        for name in ("touches_U", "last_step_U", "updates_U"):
            check(f"block.{name}", getattr(block, name), np.uint32, (rows,))
        check_tables(block.tables_U, rows)
        if self.tier is not None:
            self.tier.open()
        with naming_disk_errors():
            self._table.load(
                block.ids_U,
                block.weights_UW,
                block.state_US,
                block.touches_U,
                block.last_step_U,
                block.updates_U,
                block.tables_U,
            )

    def adopt(self, stacks: Sequence[RowStack]) -> bool:
        if any(layout_of(stack) == ANY_LAYOUT for stack in stacks):
            return False
        groups = [group for stack in stacks for group in groups_of(stack)]
        if self.tier is not None and len(groups) > min(len(stacks), len(set(groups))):
            return False  # the tier takes over one stack of each group
        if self.tier is not None:
            self.tier.open()
        with ThreadPoolExecutor(RESTORING_THREADS) as threads:
            list(threads.map(self._adopt, stacks))
        return True

    def _adopt(self, stack: RowStack) -> None:
        if self.tier is None:
            self._table.load_files([str(file) for file in stack.files])
        else:
            self.tier.adopt(stack)

    def write_new_rows(self, file: Path, ids_U: Ids, touches_U: NDArray[np.uint32]) -> None:
        """Writes a file for `adopt` (for benchmarks): new rows of one group, with these numbers of occurrences."""
        check_ids(ids_U)
        self._table.write_new_rows(str(file), ids_U, touches_U)

    def cut(self) -> MemorySnapshot:
        return MemorySnapshot(
            self._table, self.tier is not None, self.lifetimes.rules, first_part=self.parts[0].width
        )

    def memory_bytes(self) -> int:
        return self._table.memory_bytes()

    def _rows_for(self, ids_U: Ids, out_UW: Floats | None) -> Floats:
        check_ids(ids_U)
        if out_UW is None:
            return np.empty((len(ids_U), self.width), np.float32)
        check("out", out_UW, np.float32, (len(ids_U), self.width))
        if not out_UW.flags.writeable:
            raise ValueError("out is read-only: pass a writable array")
        return out_UW


class MemorySnapshot:
    """A `StoreSnapshot` of a table. It holds the old values of rows that are updated before they are read."""

    def __init__(self, table: RowTable, tiered: bool, rules: Sequence[RowRule], first_part: int) -> None:
        self._open = False
        with naming_disk_errors():
            table.begin_cut()
        self._table, self._tiered = table, tiered
        self._open = True
        self._size = table.cut_size()
        self._rules = saved(rules, first_part, table.cut_rules()) if rules else None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[RowBlock]:
        for partition in range(PARTITIONS):
            if not self._open:
                raise ValueError("this cut is closed: take a new one")
            block = RowBlock(*self._table.read_cut_partition(partition))
            if len(block.ids_U):
                yield block

    def rules(self) -> RuleState | None:
        return self._rules

    def write_files(self, folder: Path, name: str) -> list[RowStack]:
        stacks = []
        step = 1 if self._tiered else self._groups_per_file()
        for group in range(0, GROUPS, step):
            if not self._open:
                raise ValueError("this cut is closed: take a new one")
            stack = f"{name}-{group:02d}"
            path = folder / f"{stack}-000{SUFFIX}"
            with naming_lost_files(folder):
                files = self._table.write_cut_groups(group, group + step, str(path))
                if files:
                    stacks.append(link_files(stack, [Path(file) for file in files], folder))
        return stacks

    def _groups_per_file(self) -> int:
        floats = self._table.width + self._table.state_width
        files = max(1, self._size * 4 * floats // FILE_BYTES)
        return max(1, GROUPS >> (files.bit_length() - 1))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._table.end_cut()

    def __enter__(self) -> MemorySnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _check_parts(parts: Sequence[RowPart]) -> None:
    if not parts:
        raise ValueError("a store needs at least one RowPart")
    names = [part.name for part in parts]
    if len(set(names)) != len(names):
        raise ValueError(f"row parts need different names, not {names}")
    for part in parts:
        if not 1 <= part.width <= MOST_DIM:
            raise UserError(
                f"row part {part.name!r}: width must be 1 to {MOST_DIM}, not {part.width}: set another dim"
            )


def _spec(part: RowPart) -> RowPartSpec:
    numbers = asdict(part.optimizer)
    if part.clip is not None:
        numbers |= {"clip": part.clip.ratio, "clip_zeta": part.clip.zeta}
    return RowPartSpec(kind=part.optimizer.name, width=part.width, init=part.init, **numbers)
