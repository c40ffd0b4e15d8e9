"""The zipf log of bench_tiered.py, and stores that hold all of its rows before training begins.

The rank of an id within its field is its number, so what is frequent is known without counting. A store with a cold
tier is filled by row files: one with the rows that fit in memory, the frequent ones, and one with the others.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from gearshift_side import hashed
from protocol import BATCH, FIELDS, NUMERICS, ZIPF

from gearshift.data.batch import Batch
from gearshift.embedding.store import Ids, RowStack
from gearshift.embedding.table_store import GROUPS, MemoryStore

PAST = 20_000_000  # examples that the rows have been trained on


def sizes_of(rows: int) -> tuple[int, ...]:
    return tuple(rows // FIELDS + (field < rows % FIELDS) for field in range(FIELDS))


class ZipfLog:
    def __init__(self, rows: int, seed: int = 1) -> None:
        self.sizes = sizes_of(rows)
        self._random = np.random.default_rng(seed)
        largest = np.arange(1, max(self.sizes) + 1, dtype=np.float64)
        self._cumulative = np.cumsum(largest**-ZIPF)

    def batches(self, count: int) -> list[Batch]:
        return [self._batch(i) for i in range(count)]

    def _batch(self, number: int) -> Batch:
        ids_BF = np.empty((BATCH, FIELDS), np.int64)
        for field, size in enumerate(self.sizes):
            drawn = self._random.random(BATCH) * self._cumulative[size - 1]
            ids_BF[:, field] = np.searchsorted(self._cumulative[:size], drawn)
        numeric_BN = self._random.normal(0, 1, (BATCH, NUMERICS)).astype(np.float32)
        labels_BT = (self._random.random((BATCH, 1)) < 0.25).astype(np.float32)
        return Batch(number * BATCH, labels_BT, numeric_BN, hashed(np.arange(FIELDS), ids_BF))

    def touches(self, ranks: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The expected occurrences of an id in the past."""
        expected = PAST * (ranks + 1.0) ** -ZIPF / self._cumulative[self.sizes[0] - 1]
        return np.maximum(1, expected).astype(np.uint32)


@dataclass(frozen=True)
class Rows:
    """All ids of a log by group of partitions, with their occurrences."""

    ids_U: Ids
    touches_U: NDArray[np.uint32]


def groups_of(log: ZipfLog) -> list[Rows]:
    ids_U = np.concatenate([hashed(np.full(n, f), np.arange(n)) for f, n in enumerate(log.sizes)])
    touches_U = np.concatenate([log.touches(np.arange(n)) for n in log.sizes])
    group_U = (mixed(ids_U) >> np.uint64(60)).astype(np.uint8)
    return [Rows(ids_U[group_U == g], touches_U[group_U == g]) for g in range(GROUPS)]


def mixed(ids_U: Ids) -> NDArray[np.uint64]:
    """The hash by which rows are placed (`mix` in csrc/row_partition.h)."""
    x = ids_U.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x ^= x >> np.uint64(33)
        x *= np.uint64(factor)
    return x ^ (x >> np.uint64(33))


def fill_files(store: MemoryStore, groups: list[Rows], hot_share: float, below: Path, runs: int = 1) -> None:
    """`runs`: the rows that are not in memory are spread over this many files per group."""
    with tempfile.TemporaryDirectory(dir=below, prefix="fill-") as folder:
        stacks = []
        for number, rows in enumerate(groups):
            order_U = np.argsort(rows.touches_U, kind="stable")[::-1]
            hot = round(len(order_U) * hot_share)
            parts = [
                order_U[:hot],
                *np.array_split(np.random.default_rng(number).permutation(order_U[hot:]), runs),
            ]
            files = []
            for at_U in (part for part in parts if len(part)):
                files.append(Path(folder) / f"rows0-{number:02d}-{len(files):03d}.gsr")
                store.write_new_rows(files[-1], rows.ids_U[at_U].copy(), rows.touches_U[at_U].copy())
            stacks.append(RowStack(f"rows0-{number:02d}", tuple(files)))
        store.adopt(stacks)
