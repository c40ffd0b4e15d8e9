"""Estimates how a run with a memory budget will go: what fits, what goes to disk, and how fast the disk lets it train.

Occurrences of ids are taken to follow a power law. If the number of distinct ids grows with n occurrences as n^b, the
id of rank r occurs with probability C r^(-1/b); so the ids beyond rank H have a share C b/(1-b) H^(-(1-b)/b) of the
occurrences, and V = Gamma(1-b) (C n)^b of them are distinct. The most frequent ids are assumed to be in memory. Those
that are not are read from disk, unless they are new. The rate of the disk is measured on a small file.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gearshift import _core
from gearshift.embedding.cold_tier import (
    BUFFER_SHARE,
    MOST_BUFFER_BYTES,
    disk_bytes_per_row,
    hot_bytes_per_row,
)
from gearshift.embedding.cold_tier import INDEX_BYTES_PER_STORED_ROW as INDEX_BYTES
from gearshift.embedding.cold_tier import MOST_SPACE as SPACE

PROBE_BYTES, PROBE_SECONDS = 32 << 20, 0.15
POINTS = 64  # of the run, at which the reads per example are computed


@dataclass(frozen=True)
class RowGrowth:
    """How the rows of one store come into being: `rows` after `examples` examples, which grow as examples^growth."""

    rows: int
    growth: float
    occurrences: float  # per example
    examples: int
    floats: int  # of a row, optimizer state included
    budget: int  # bytes of memory, of all shards

    @property
    def hot_rows(self) -> int:
        """Those that fit in memory at the end."""
        memory = self.budget - min(self.budget // BUFFER_SHARE, MOST_BUFFER_BYTES)
        each, index = hot_bytes_per_row(self.floats), SPACE * INDEX_BYTES
        if self.rows * each <= memory:
            return self.rows
        return min(self.rows, max(0, int((memory - self.rows * index) / (each - index))))

    @property
    def cold_rows(self) -> int:
        return self.rows - self.hot_rows

    @property
    def disk_bytes(self) -> int:
        """The most that its files may need."""
        return int(SPACE * self.cold_rows * disk_bytes_per_row(self.floats))

    def reads_per_example(self, examples: float) -> float:
        """Rows on disk that an example needs after this many, if the most frequent ids are in memory."""
        b = min(max(self.growth, 0.05), 0.95)
        rows = self.rows * (examples / self.examples) ** b
        if rows <= self.hot_rows or not rows:
            return 0.0
        n = self.occurrences * examples
        c = (rows / math.gamma(1 - b)) ** (1 / b) / n
        beyond = c * b / (1 - b) * (self.hot_rows + 0.5) ** (-(1 - b) / b)
        new = b * rows / n
        return float(self.occurrences * max(0.0, min(1.0, beyond) - new))


@dataclass(frozen=True)
class TierEstimate:
    stores: tuple[RowGrowth, ...]
    folder: Path
    free_bytes: int | None  # on the disk of the folder; None: unknown
    reads_per_second: float | None  # of 4 KiB at random, measured; None: the folder cannot be used yet

    @property
    def hot_rows(self) -> int:
        return sum(store.hot_rows for store in self.stores)

    @property
    def cold_rows(self) -> int:
        return sum(store.cold_rows for store in self.stores)

    @property
    def disk_bytes(self) -> int:
        return sum(store.disk_bytes for store in self.stores)

    @property
    def final_reads_per_example(self) -> float:
        """At the end of a pass, when the table is largest."""
        return sum(store.reads_per_example(store.examples) for store in self.stores)

    @property
    def reads(self) -> float:
        """Of one pass over the data."""
        total = 0.0
        for store in self.stores:
            points = [store.examples * (i + 0.5) / POINTS for i in range(POINTS)]
            total += sum(map(store.reads_per_example, points)) * store.examples / POINTS
        return total


def estimate_tier(stores: Sequence[RowGrowth], folder: Path) -> TierEstimate:
    any_on_disk = any(store.cold_rows for store in stores)
    return TierEstimate(tuple(stores), folder, _free(folder), _probe(folder) if any_on_disk else None)


def _free(folder: Path) -> int | None:
    for place in (folder, *folder.absolute().parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


@cache
def _probe(folder: Path) -> float | None:
    """Random reads per second from a file in the nearest folder that exists; None if none can be written there."""
    place = next((p for p in (folder, *folder.absolute().parents) if p.is_dir()), None)
    try:
        with tempfile.NamedTemporaryFile(prefix=".gearshift-probe-", dir=place) as file:
            file.write(os.urandom(1 << 20) * (PROBE_BYTES >> 20))
            file.flush()
            os.fsync(file.fileno())
            return _core.random_read_rate(file.name, PROBE_SECONDS)
    except OSError:
        return None
