"""Maps the fields of a batch to stores: which ids it needs, and how rows become model inputs.

All fields of one width share one store. The ids of a batch in that store are arranged as *occurrences*: the single
fields as [B, F] row by row, then each bag or sequence. `find` deduplicates them. It does not depend on training, so it
can run ahead in another thread. This module knows no model and no optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gearshift import _core
from gearshift.data.batch import Batch, Floats, Ids
from gearshift.data.schema import Schema


@dataclass(frozen=True)
class FieldGroup:
    """The fields that share a store because their rows have the same width."""

    dim: int
    singles: tuple[int, ...]  # columns of Batch.ids_BF
    ragged: tuple[int, ...]  # entries of Batch.ragged

    def occurrences(self, batch: Batch) -> Ids:
        every = len(self.singles) == batch.ids_BF.shape[1]
        columns = batch.ids_BF if every else batch.ids_BF[:, self.singles]
        flat = [np.ascontiguousarray(columns).reshape(-1)]
        flat += [batch.ragged[i].ids for i in self.ragged]
        return np.ascontiguousarray(flat[0] if len(flat) == 1 else np.concatenate(flat))


def field_groups(schema: Schema, dim: int) -> tuple[FieldGroup, ...]:
    """Groups by width, most fields first; `dim` is the width of fields that do not set it."""
    singles = [schema.row_width(f, dim) for f in schema.single_fields]
    ragged = [schema.row_width(f, dim) for f in schema.ragged_fields]
    widths = sorted({*singles, *ragged}, key=lambda w: (w != dim, w))
    return tuple(
        FieldGroup(
            width,
            tuple(i for i, w in enumerate(singles) if w == width),
            tuple(i for i, w in enumerate(ragged) if w == width),
        )
        for width in widths
    )


@dataclass(frozen=True)
class IndexedBatch:
    """A batch and, for each store, its distinct ids with their occurrences."""

    batch: Batch
    indices: tuple[_core.Occurrences, ...]

    @property
    def ids(self) -> tuple[Ids, ...]:
        return tuple(index.unique_U for index in self.indices)


def find(batch: Batch, groups: tuple[FieldGroup, ...]) -> IndexedBatch:
    return IndexedBatch(batch, tuple(_core.Occurrences(group.occurrences(batch)) for group in groups))


class Buffers:
    """Arrays that are reused for every batch: a new large array costs a page fault for every 4 KB."""

    def __init__(self) -> None:
        self._kept: dict[str, Floats] = {}

    def floats(self, name: str, rows: int, columns: int) -> Floats:
        """An uninitialised [rows, columns] array, valid until the name is requested again."""
        size = rows * columns
        if name not in self._kept or self._kept[name].size < size:
            self._kept[name] = np.empty(size + size // 4, np.float32)
        return self._kept[name][:size].reshape(rows, columns)
