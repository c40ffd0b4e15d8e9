"""The store in memory, with an optional cold tier on disk: a `RowStore` on top of the C++ table, which does the work.

This module checks arguments, so that a wrong array gives a clear error instead of a crash or a silent copy, and
turns the table's partitions into blocks.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gearshift._core import RowPartSpec, RowTable
from gearshift.embedding.cold_tier import (
    LITTLE_MEMORY,
    ColdTier,
    TierFolder,
    allow_many_files,
    check_budget,
    naming_disk_errors,
)
from gearshift.embedding.horizons import Horizons
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
from gearshift.embedding.row_rules import COUNTS, SKETCH_BYTES, RowRule, RuleState, joined, saved
from gearshift.embedding.store import Floats, Ids, RowBlock, RowPart, RowStack, Tables, TierCounts
from gearshift.errors import warn

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
    ) -> None:
        """`portable` disables AVX2, with the same results (for tests). Without a `tier` all rows stay in memory.

        `rules` are those of admission and expiry, by the number of a table; with any, pulls create no rows.
        """
        _check_parts(parts)
        self.parts = tuple(parts)
        little_memory = tier is not None and tier.budget < LITTLE_MEMORY
        self._table = RowTable([_spec(part) for part in parts], seed & (2**64 - 1), portable, little_memory)
        self.rules = tuple(rules)
        if self.rules:
            self._table.set_rules([rule.facts for rule in self.rules])
        self.width = self._table.width
        self.state_width = self._table.state_width
        self._tier, self._must_open, self._opening = tier, tier is not None, threading.Lock()
        if tier is not None:
            counts = any(rule.min_count > 1 for rule in self.rules)
            check_budget(tier, self.width + self.state_width, SKETCH_BYTES if counts else 0)

    @property
    def budget(self) -> int | None:
        return None if self._tier is None else self._tier.budget

    @property
    def tier_folder(self) -> Path | None:
        return None if self._tier is None else self._tier.folder

    def __len__(self) -> int:
        return len(self._table)

    def pull(
        self, ids_U: Ids, out_UW: Floats | None = None, *, tables_U: Tables | None = None, threads: int = 1
    ) -> Floats:
        out_UW = self._rows_for(ids_U, out_UW)
        _check_tables(tables_U, len(ids_U))
        if self._must_open:
            self._open_tier()
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
        _check("ids", ids_U, np.int64, (None,))
        _check("sums", sums_UW, np.float32, (len(ids_U), self.width))
        _check("counts", counts_U, np.uint32, (len(ids_U),))
        _check_tables(tables_U, len(ids_U))
        if not 0 <= step < 2**32:
            raise ValueError(f"step must be between 0 and 2**32, not {step}")
        if self._must_open:
            self._open_tier()
        with naming_disk_errors():
            self._table.push(ids_U, tables_U, sums_UW, counts_U, examples, step, lr_scale, threads)

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]:
        _check("ids", ids_U, np.int64, (None,))
        out_U = np.empty(len(ids_U), np.bool_)
        with naming_disk_errors():
            self._table.contains(ids_U, out_U)
        return out_U

    def erase(self, ids_U: Ids) -> int:
        _check("ids", ids_U, np.int64, (None,))
        with naming_disk_errors():
            return self._table.erase(ids_U)

    def blocks(self) -> Iterator[RowBlock]:
        for partition in range(PARTITIONS):
            block = RowBlock(*self._table.read_partition(partition))
            if len(block.ids_U):
                yield block

    def load(self, block: RowBlock) -> None:
        _check("block.ids_U", block.ids_U, np.int64, (None,))
        rows = len(block.ids_U)
        _check("block.weights_UW", block.weights_UW, np.float32, (rows, self.width))
        _check("block.state_US", block.state_US, np.float32, (rows, self.state_width))
        for name in ("touches_U", "last_step_U", "updates_U"):
            _check(f"block.{name}", getattr(block, name), np.uint32, (rows,))
        _check_tables(block.tables_U, rows)
        if self._must_open:
            self._open_tier()
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
        if self._tier is not None and any(len(groups_of(stack)) > 1 for stack in stacks):
            return False
        if self._must_open:
            self._open_tier()
        with ThreadPoolExecutor(RESTORING_THREADS) as threads:
            list(threads.map(self._adopt, stacks))
        return True

    def _adopt(self, stack: RowStack) -> None:
        if self._tier is None:
            self._table.load_files([str(file) for file in stack.files])
        else:
            linked = link_files(stack.name, stack.files, self._tier_folder)
            self._table.adopt_files([str(file) for file in linked.files])

    def write_new_rows(self, file: Path, ids_U: Ids, touches_U: NDArray[np.uint32]) -> None:
        """Writes a file for `adopt` (for benchmarks): new rows of one group, with these numbers of occurrences."""
        _check("ids", ids_U, np.int64, (None,))
        self._table.write_new_rows(str(file), ids_U, touches_U)

    def cut(self) -> MemorySnapshot:
        return MemorySnapshot(
            self._table, tiered=self._tier is not None, rules=self.rules, first_part=self.parts[0].width
        )

    def move_horizons(self, horizons: Horizons) -> None:
        if any(rule.expire for rule in self.rules):
            steps = dict(horizons.steps)
            self._table.move_horizons(horizons.mark, [steps.get(rule.period, 0) for rule in self.rules])

    def restore_rules(self, states: Sequence[RuleState], of_shard: tuple[int, int] = (0, 1)) -> None:
        if self.rules and states:
            self._table.restore_rules(dict(joined(states, of_shard)))

    def rule_counts(self) -> NDArray[np.uint64]:
        return self._table.rule_counts() if self.rules else np.zeros((0, len(COUNTS)), np.uint64)

    def memory_bytes(self) -> int:
        return self._table.memory_bytes()

    def prefetch(self, ids_U: Ids) -> None:
        """Brings rows of the cold tier into memory, before they are pulled."""
        _check("ids", ids_U, np.int64, (None,))
        if self._tier is not None and not self._must_open:
            with naming_disk_errors():
                self._table.prefetch(ids_U)

    def begin_chunk(self) -> None:
        if self._tier is not None and not self._must_open:
            self._table.begin_chunk()

    def expect(self, ids_U: Ids) -> float:
        _check("ids", ids_U, np.int64, (None,))
        return 0.0 if self._tier is None or self._must_open else self._table.expect(ids_U)

    def load_expected(self) -> bool:
        with naming_disk_errors():
            return self._tier is not None and not self._must_open and self._table.load_expected()

    def tier_counts(self) -> TierCounts | None:
        """None without a cold tier."""
        return None if self._tier is None else TierCounts(**self._table.tier_counts())

    def write_failure(self) -> str | None:
        return None if self._tier is None else self._table.cold_write_failure() or None

    def settle_tier(self) -> None:
        """Waits until evicted rows are written and files are merged (for tests and benchmarks)."""
        if self._tier is not None and not self._must_open:
            self._table.settle_cold_tier()

    def _open_tier(self) -> None:
        """Opens the tier before the first row is made. Many processes have stores that stay empty."""
        with self._opening:
            if self._tier is None or not self._must_open:
                return
            if self._tier.notice:
                warn(self._tier.notice)
            folder = TierFolder(self._tier.folder)
            self._tier_folder = folder.path
            self._table.add_cold_tier(str(folder.path), self._tier.budget, self._tier.hot_rows)
            weakref.finalize(self, _close_tier, self._table, folder)
            allow_many_files()
            self._must_open = False

    def _rows_for(self, ids_U: Ids, out_UW: Floats | None) -> Floats:
        _check("ids", ids_U, np.int64, (None,))
        if out_UW is None:
            return np.empty((len(ids_U), self.width), np.float32)
        _check("out", out_UW, np.float32, (len(ids_U), self.width))
        if not out_UW.flags.writeable:
            raise ValueError("out is read-only: pass a writable array")
        return out_UW


class MemorySnapshot:
    """A `StoreSnapshot` of a table. It holds the old values of rows that are updated before they are read."""

    def __init__(self, table: RowTable, tiered: bool, rules: Sequence[RowRule], first_part: int) -> None:
        self._open = False
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


def _close_tier(table: RowTable, folder: TierFolder) -> None:
    table.close_cold_tier()  # its thread writes no more files
    folder.close()


def _check_parts(parts: Sequence[RowPart]) -> None:
    if not parts:
        raise ValueError("a store needs at least one RowPart")
    names = [part.name for part in parts]
    if len(set(names)) != len(names):
        raise ValueError(f"row parts need different names, not {names}")
    for part in parts:
        if not 1 <= part.width <= 4096:
            raise ValueError(f"row part {part.name!r}: width must be 1 to 4096, not {part.width}")


def _check(name: str, array: object, dtype: type[np.generic], shape: tuple[int | None, ...]) -> None:
    """Raise a clear error for an array that the core would refuse."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, not {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, not {array.dtype}: use {name}.astype first")
    if array.ndim != len(shape) or any(
        w is not None and w != g for w, g in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join("n" if w is None else str(w) for w in shape)
        raise ValueError(f"{name} must have shape ({wanted}), not {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous: use np.ascontiguousarray({name})")


def _check_tables(tables_U: Tables | None, rows: int) -> None:
    if tables_U is not None:
        _check("tables", tables_U, np.uint16, (rows,))


def _spec(part: RowPart) -> RowPartSpec:
    numbers = asdict(part.optimizer)
    if part.clip is not None:
        numbers |= {"clip": part.clip.ratio, "clip_zeta": part.clip.zeta}
    return RowPartSpec(kind=part.optimizer.name, width=part.width, init=part.init, **numbers)
