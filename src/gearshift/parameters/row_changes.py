"""Compares the rows of two checkpoints: which changed, which were erased, and how to apply such changes.

Rows are compared partition by partition, in order, so that a table of any size is never in memory as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gearshift.embedding.row_files import NO_IDS, PARTITIONS, PartitionChanges
from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import RowBlock

Old = TypeVar("Old")
New = TypeVar("New")
Partitions = Iterator[tuple[int, RowBlock]]  # ascending; the rows of a partition are sorted by id


class RowDigest:
    """A digest of all rows of a store, whatever files they came from."""

    def __init__(self) -> None:
        self.rows = 0
        self._digest = hashlib.sha256()

    def reading(self, partitions: Partitions) -> Partitions:
        """The same partitions; the digest covers those that have been read."""
        for number, block in partitions:
            self._digest.update(number.to_bytes(2, "little"))
            for field in fields(block):
                column = np.ascontiguousarray(getattr(block, field.name))
                if field.name != "tables_U" or column.any():  # rows of older versions have no table
                    self._digest.update(column.data)
            self.rows += len(block.ids_U)
            yield number, block

    @property
    def facts(self) -> dict[str, int | str]:
        return {"rows": self.rows, "sha256": self._digest.hexdigest()}


def by_partition(blocks: Iterable[RowBlock]) -> Partitions:
    """The rows of a checkpoint's files, which are in the order of partitions."""
    for block in blocks:
        for number, at in enumerate(IdPlacement(block.ids_U, PARTITIONS).groups):
            if len(at):
                yield number, _rows(block, at[np.argsort(block.ids_U[at], kind="stable")])


def changes(old: Partitions, new: Partitions) -> Iterator[PartitionChanges]:
    for number, before, after in _side_by_side(old, new):
        if after is None:
            assert before is not None
            yield PartitionChanges(number, _rows(before, slice(0)), before.ids_U)
        elif before is None:
            yield PartitionChanges(number, after, NO_IDS)
        else:
            difference = _difference(number, before, after)
            if len(difference.changed.ids_U) or len(difference.erased_U):
                yield difference


def applied(old: Partitions, difference: Iterable[PartitionChanges]) -> Partitions:
    """`old` with the changed rows instead of or beside its own, and without the erased ones."""
    tagged = ((each.partition, each) for each in difference)
    for number, before, change in _side_by_side(old, tagged):
        result = before
        if change is not None:
            result = change.changed if before is None else _changed(before, change)
        if result is not None and len(result.ids_U):
            yield number, result


def _changed(before: RowBlock, change: PartitionChanges) -> RowBlock:
    gone_U = np.concatenate([change.erased_U, change.changed.ids_U])
    kept = _rows(before, ~np.isin(before.ids_U, gone_U))
    both = [np.concatenate([getattr(b, f.name) for b in (kept, change.changed)]) for f in fields(RowBlock)]
    joined = RowBlock(*both)
    return _rows(joined, np.argsort(joined.ids_U, kind="stable"))


def _side_by_side(
    old: Iterator[tuple[int, Old]], new: Iterator[tuple[int, New]]
) -> Iterator[tuple[int, Old | None, New | None]]:
    """What both have of each partition, in order."""
    of_old, of_new = next(old, None), next(new, None)
    while of_old is not None or of_new is not None:
        number = min(each[0] for each in (of_old, of_new) if each is not None)
        left = of_old[1] if of_old is not None and of_old[0] == number else None
        right = of_new[1] if of_new is not None and of_new[0] == number else None
        yield number, left, right
        if left is not None:
            of_old = next(old, None)
        if right is not None:
            of_new = next(new, None)


def _difference(number: int, before: RowBlock, after: RowBlock) -> PartitionChanges:
    _, in_before, in_after = np.intersect1d(
        before.ids_U, after.ids_U, assume_unique=True, return_indices=True
    )
    same_U = np.ones(len(in_after), np.bool_)
    for field in fields(RowBlock):
        old, new = getattr(before, field.name)[in_before], getattr(after, field.name)[in_after]
        bits = f"u{old.dtype.itemsize}"  # so that -0.0 differs from 0.0
        equal = old.view(bits) == new.view(bits)
        same_U &= equal.all(1) if equal.ndim > 1 else equal
    unchanged_U = np.zeros(len(after.ids_U), np.bool_)
    unchanged_U[in_after[same_U]] = True
    gone_U = np.ones(len(before.ids_U), np.bool_)
    gone_U[in_before] = False
    return PartitionChanges(number, _rows(after, ~unchanged_U), before.ids_U[gone_U])


def _rows(block: RowBlock, at: NDArray[np.generic] | slice) -> RowBlock:
    return replace(block, **{field.name: getattr(block, field.name)[at] for field in fields(block)})
