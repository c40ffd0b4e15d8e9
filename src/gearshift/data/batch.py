"""A batch of examples ready for a model: numbers, ids and labels. Blocks of a file have the same type.

This module does not depend on files, torch or stores. Ids are 63-bit hashes of (table, value) and are never floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """A variable number of ids per example. The ids of example i are `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Ids  # [nnz]
    offsets: NDArray[np.int64]  # [B + 1], offsets[0] == 0

    def slice(self, start: int, stop: int) -> Ragged:
        begin, end = self.offsets[start], self.offsets[stop]
        return Ragged(self.ids[begin:end], self.offsets[start : stop + 1] - begin)

    def take(self, positions: NDArray[np.int64]) -> Ragged:
        lengths = np.diff(self.offsets)[positions]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        source = np.repeat(self.offsets[:-1][positions] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.ids[source], offsets)


@dataclass(frozen=True)
class Batch:
    """Consecutive examples as arrays with one row per example.

    `first` is the position of the first example in its data set.
    """

    first: int
    labels_BT: Floats
    numeric_BN: Floats
    ids_BF: Ids  # one column per single field, schema order
    ragged: tuple[Ragged, ...] = ()  # one per bag or sequence, schema order
    weights_B: Floats | None = None
    times_B: NDArray[np.int64] | None = None  # epoch seconds
    groups_B: Ids | None = None
    kept: pa.Table | None = None  # the schema's `keep` columns, unchanged

    def __len__(self) -> int:
        return len(self.labels_BT)

    def moved(self, first: int) -> Batch:
        """The same examples at a different position."""
        return self if self.first == first else replace(self, first=first)

    def memory_bytes(self) -> int:
        """The memory used by its arrays, in bytes."""
        arrays: list[NDArray[Any] | None] = [self.labels_BT, self.numeric_BN, self.ids_BF]
        arrays += [self.weights_B, self.times_B, self.groups_B]
        arrays += [array for r in self.ragged for array in (r.ids, r.offsets)]
        kept = 0 if self.kept is None else int(self.kept.nbytes)
        return kept + sum(array.nbytes for array in arrays if array is not None)

    def slice(self, start: int, stop: int) -> Batch:
        """A view of examples [start, stop). Only the offsets of ragged fields are copied."""
        cut = slice(start, stop)
        return Batch(
            self.first + start,
            self.labels_BT[cut],
            self.numeric_BN[cut],
            self.ids_BF[cut],
            tuple(r.slice(start, stop) for r in self.ragged),
            None if self.weights_B is None else self.weights_B[cut],
            None if self.times_B is None else self.times_B[cut],
            None if self.groups_B is None else self.groups_B[cut],
            None if self.kept is None else self.kept.slice(start, stop - start),
        )

    def take(self, positions: NDArray[np.int64]) -> Batch:
        """A copy of the examples at these positions, in this order (shuffling)."""
        return Batch(
            self.first,
            self.labels_BT[positions],
            self.numeric_BN[positions],
            self.ids_BF[positions],
            tuple(r.take(positions) for r in self.ragged),
            None if self.weights_B is None else self.weights_B[positions],
            None if self.times_B is None else self.times_B[positions],
            None if self.groups_B is None else self.groups_B[positions],
            None if self.kept is None else self.kept.take(positions),
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One batch with all examples, in order; `first` is taken from the first batch."""
        if len(batches) == 1:
            return batches[0]

        def join(name: str) -> Any:
            parts = [getattr(b, name) for b in batches]
            return None if parts[0] is None else np.concatenate(parts)

        ragged = tuple(_concat_ragged(rs) for rs in zip(*(b.ragged for b in batches), strict=True))
        kept = None
        if batches[0].kept is not None:
            import pyarrow as pa

            kept = pa.concat_tables([b.kept for b in batches])
        return Batch(
            batches[0].first,
            join("labels_BT"),
            join("numeric_BN"),
            join("ids_BF"),
            ragged,
            join("weights_B"),
            join("times_B"),
            join("groups_B"),
            kept,
        )


def _concat_ragged(parts: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([np.diff(r.offsets) for r in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(np.concatenate([r.ids for r in parts]), offsets)
