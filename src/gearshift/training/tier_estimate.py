"""Estimates how a run with a memory budget will go: what fits, what goes to disk, and how fast the disk lets it train.

Occurrences of ids are taken to follow a power law. If the number of distinct ids grows with n occurrences as n^b, a
share b (1-b) ... (k-1-b) / k! of them has occurred k times, and each of these occurs next with probability (k-b) / n
(Good-Turing; a share b V/n of the occurrences is new). The rows with the fewest occurrences leave memory first, new
ones among them. An occurrence of an id whose row is on disk costs a read. The rate of the disk is measured on a small
file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gearshift import _core
from gearshift.embedding.memory_budget import INDEX_SHARE, HotRows, disk_bytes_per_row, hot_rows, index_bytes
from gearshift.embedding.memory_budget import MOST_SPACE as SPACE

PROBE_BYTES, PROBE_SECONDS = 32 << 20, 0.15
POINTS = 64  # of the run, at which the reads per example are computed
USUAL_SPACE = 1.25  # rows in files per row of the store
MOST_OCCURRENCES = 2000  # rows that occurred more often are read as seldom as those
MOVE_SECONDS = (
    8e-6  # of a processor, to write a row that leaves memory and to bring it back: measured on 2 cores
)


@dataclass(frozen=True)
class RowGrowth:
    """How the rows of one store come into being: `rows` after `examples` examples, which grow as examples^growth."""

    rows: int
    growth: float
    occurrences: float  # per example
    examples: int
    floats: int  # of a row, optimizer state included
    budget: int  # bytes of memory, of all shards
    sketch: int = 0  # of these, what counts ids for `min_count`
    shards: int = 1
    epochs: int = 1

    @property
    def _fitting(self) -> HotRows:
        empty = hot_rows(self.budget, self.floats, 0, self.sketch, self.shards)
        if self.rows <= empty.most:
            return empty
        return hot_rows(self.budget, self.floats, USUAL_SPACE * self.rows, self.sketch, self.shards)

    @property
    def hot_rows(self) -> int:
        """Those that are in memory at the end."""
        fitting = self._fitting
        return self.rows if self.rows <= fitting.most else min(self.rows, fitting.usual)

    @property
    def cold_rows(self) -> int:
        return self.rows - self.hot_rows

    @property
    def least_budget(self) -> float:
        """With less, the index of the files leaves little memory for rows; 0 if no file is needed."""
        return INDEX_SHARE * index_bytes(USUAL_SPACE * self.rows) if self.cold_rows else 0.0

    @property
    def disk_bytes(self) -> int:
        """The most that its files may need."""
        return int(SPACE * self.cold_rows * disk_bytes_per_row(self.floats))

    def reads_per_example(self, examples: float) -> float:
        """Rows on disk that an example needs after this many of the first pass."""
        return self._reads(examples, again=False)

    @property
    def final_reads_per_example(self) -> float:
        """Later passes see no new ids: all that are not in memory are read."""
        return self._reads(self.examples, again=self.epochs > 1)

    @property
    def reads(self) -> float:
        """Of all passes over the data."""
        points = [self.examples * (i + 0.5) / POINTS for i in range(POINTS)]
        first = sum(map(self.reads_per_example, points)) * self.examples / POINTS
        return first + (self.epochs - 1) * self.examples * self._reads(self.examples, again=True)

    def _reads(self, examples: float, *, again: bool) -> float:
        b = min(max(self.growth, 0.05), 0.95)
        rows = self.rows * (examples / self.examples) ** b
        cold = rows - min(rows, self.hot_rows)
        reads, share = 0.0, 1.0
        for k in range(1, MOST_OCCURRENCES):
            share *= b if k == 1 else (k - 1 - b) / k  # of the ids: those that occurred k times
            some = cold if k == MOST_OCCURRENCES - 1 else min(cold, rows * share)
            reads += some * (k if again else k - b)
            cold -= some
            if cold <= 0:
                break
        return min(self.occurrences, reads / examples)


@dataclass(frozen=True)
class TierEstimate:
    stores: tuple[RowGrowth, ...]
    folder: Path
    free_bytes: int | None  # on the disk of the folder; None: unknown
    reads_per_second: float | None  # of 4 KiB at random, measured; None: the folder cannot be used yet
    beside: tuple[RowGrowth, ...] = ()  # stores of the baseline

    @property
    def hot_rows(self) -> int:
        return sum(store.hot_rows for store in self.stores)

    @property
    def cold_rows(self) -> int:
        return sum(store.cold_rows for store in self.stores)

    @property
    def outgrown(self) -> float:
        """How many times the memory must be what it is, so that the index of the files takes at most half of it."""
        stores = (*self.stores, *self.beside)
        return max((store.least_budget / max(store.budget, 1) for store in stores), default=0.0)

    @property
    def disk_bytes(self) -> int:
        return sum(store.disk_bytes for store in (*self.stores, *self.beside))

    @property
    def final_reads_per_example(self) -> float:
        """When the table is largest."""
        return sum(store.final_reads_per_example for store in (*self.stores, *self.beside))

    def seconds(self, evaluated: float = 0) -> float:
        """What rows that leave memory and come back add to the training, and to evaluations of so many examples."""
        stores = (*self.stores, *self.beside)
        reads = sum(store.reads for store in stores) + evaluated * self.final_reads_per_example
        moving = MOVE_SECONDS * (reads + sum(store.cold_rows for store in stores))
        return moving if self.reads_per_second is None else max(moving, reads / self.reads_per_second)

    def limit(self, examples_per_second: float) -> float | None:
        """The examples per second that the disk allows at the end; None if it is not the bottleneck."""
        reads = self.final_reads_per_example
        if not reads or not self.reads_per_second:
            return None
        most = self.reads_per_second / reads
        return most if most < min(examples_per_second, 1 / (MOVE_SECONDS * reads)) else None


def estimate_tier(
    stores: Sequence[RowGrowth], folder: Path, beside: Sequence[RowGrowth] = ()
) -> TierEstimate:
    any_on_disk = any(store.cold_rows for store in (*stores, *beside))
    rate = _probe(folder) if any_on_disk else None
    return TierEstimate(tuple(stores), folder, _free(folder), rate, tuple(beside))


def _free(folder: Path) -> int | None:
    place = _nearest(folder)
    return shutil.disk_usage(place).free if place.is_dir() and os.access(place, os.W_OK) else None


def _nearest(folder: Path) -> Path:
    """The folder, or the last part of its path that exists."""
    places = (folder.absolute(), *folder.absolute().parents)
    return next(place for place in places if os.path.exists(place))  # noqa: PTH110 (it does not raise)


@cache
def _probe(folder: Path) -> float | None:
    """Random reads per second from a file in the nearest folder that exists; None if none can be written there."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".gearshift-probe-", dir=_nearest(folder)) as file:
            file.write(os.urandom(1 << 20) * (PROBE_BYTES >> 20))
            file.flush()
            os.fsync(file.fileno())
            return _core.random_read_rate(file.name, PROBE_SECONDS)
    except OSError:
        return None
