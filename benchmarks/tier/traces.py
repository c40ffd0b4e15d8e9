"""Traces of rows as training asks for them: per batch the distinct rows of 26 fields, zipf 1.05, and how often each
occurs.

Rows are numbered from 0 over all fields; the often used ones lie anywhere among the others. Numpy only: it runs in
the environments of the peers, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FIELDS, BATCH, ZIPF = 26, 4096, 1.05
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """Batch b has the rows `rows_N[begins[b] : begins[b + 1]]`, sorted, which occur `counts_N` times in it."""

    rows: int
    rows_N: NDArray[np.uint32]
    counts_N: NDArray[np.uint16]
    begins: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begins) - 1

    def rows_of(self, batch: int) -> Rows:
        return self.rows_N[self.begins[batch] : self.begins[batch + 1]].astype(np.int64)

    def counts_of(self, batch: int) -> NDArray[np.uint32]:
        return self.counts_N[self.begins[batch] : self.begins[batch + 1]].astype(np.uint32)

    def save(self, folder: Path) -> None:
        for name in ("rows_N", "counts_N", "begins"):
            np.save(folder / f"trace.{name}.npy", getattr(self, name))
        (folder / "trace.rows").write_text(str(self.rows))

    @staticmethod
    def load(folder: Path) -> Trace:
        arrays = [np.load(folder / f"trace.{name}.npy") for name in ("rows_N", "counts_N", "begins")]
        return Trace(int((folder / "trace.rows").read_text()), *arrays)


class ZipfRows:
    """The fields are of one size, and in each the row of rank r is asked for with probability ~ r^-1.05."""

    def __init__(self, rows: int, seed: int) -> None:
        self.per_field = rows // FIELDS
        self.rows = self.per_field * FIELDS
        weights = np.arange(1, self.per_field + 1, dtype=np.float64) ** -ZIPF
        self.probability_R = weights / weights.sum()  # of a rank, in its field
        self._cumulative = np.cumsum(self.probability_R)
        random = np.random.default_rng(seed)
        self.row_of_rank = [random.permutation(self.per_field).astype(np.uint32) for _ in range(FIELDS)]

    def batch(self, random: np.random.Generator, size: int = BATCH) -> NDArray[np.uint32]:
        """[26, size] rows, repeated as they occur."""
        ranks = np.searchsorted(self._cumulative, random.random((FIELDS, size)))
        ranks = np.minimum(ranks, self.per_field - 1)
        return np.stack(
            [
                self.row_of_rank[field][ranks[field]] + np.uint32(field * self.per_field)
                for field in range(FIELDS)
            ]
        )

    def counts(self, batches: int, seed: int) -> NDArray[np.uint32]:
        """Of each row, how often this many batches may have had it."""
        random, counts = np.random.default_rng(seed), np.empty(self.rows, np.uint32)
        for field in range(FIELDS):
            places = self.row_of_rank[field].astype(np.int64) + field * self.per_field
            counts[places] = random.poisson(self.probability_R * batches * BATCH)
        return counts

    def most_frequent(self, count: int) -> NDArray[np.bool_]:
        """Of each row, whether it is among the `count` most probable ones: what a perfect static LFU holds."""
        held = np.zeros(self.rows, np.bool_)
        for field in range(FIELDS):
            ranks = count // FIELDS + (field < count % FIELDS)
            held[self.row_of_rank[field][:ranks].astype(np.int64) + field * self.per_field] = True
        return held


def zipf_trace(zipf: ZipfRows, batches: int, seed: int) -> Trace:
    random = np.random.default_rng(seed)
    found = [np.unique(zipf.batch(random), return_counts=True) for _ in range(batches)]
    return Trace(
        zipf.rows,
        np.concatenate([rows for rows, _ in found]).astype(np.uint32),
        np.concatenate([counts for _, counts in found]).astype(np.uint16),
        np.concatenate([[0], np.cumsum([len(rows) for rows, _ in found])]).astype(np.int64),
    )


def ids_of(rows_N: Rows) -> NDArray[np.int64]:
    """63-bit ids, as spread as the hash of a reader makes them (splitmix64)."""
    x = rows_N.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
