"""Compares the rows of two checkpoints: which changed, which were erased, and how to apply such changes.

Rows are compared partition by partition, in order, so that a table of any size is never in memory as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from heapq import merge
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gearshift.embedding.memory import PARTITIONS
from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import Ids, RowBlock

Partitions = Iterator[tuple[int, RowBlock]]  # ascending; the rows of a partition are sorted by id


@dataclass
class RowChanges:
    """The rows of a partition that are new or differ, and the ids that were removed."""

    changed: RowBlock | None
    erased_U: Ids


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
                self._digest.update(np.ascontiguousarray(getattr(block, field.name)).data)
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


def changes(old: Partitions, new: Partitions) -> Iterator[RowChanges]:
    for before, after in _side_by_side(old, new):
        if after is None:
            assert before is not None
            yield RowChanges(None, before.ids_U)
        elif before is None:
            yield RowChanges(after, np.empty(0, np.int64))
        else:
            yield _difference(before, after)


def applied(old: Partitions, new: Partitions, erased_U: Ids) -> Partitions:
    """`old` with the rows of `new` added or replaced, and without the erased rows."""
    for before, after in _side_by_side(old, new):
        kept = _rows(before, ~np.isin(before.ids_U, erased_U)) if before is not None else None
        if kept is not None and after is not None:
            kept = _rows(kept, ~np.isin(kept.ids_U, after.ids_U))
            both = [np.concatenate([getattr(b, f.name) for b in (kept, after)]) for f in fields(RowBlock)]
            joined = RowBlock(*both)
            kept = _rows(joined, np.argsort(joined.ids_U, kind="stable"))
        result = after if kept is None else kept
        if result is not None and len(result.ids_U):
            yield int(_partition(result)), result


def _side_by_side(old: Partitions, new: Partitions) -> Iterator[tuple[RowBlock | None, RowBlock | None]]:
    tagged = merge(
        ((number, 0, block) for number, block in old),
        ((number, 1, block) for number, block in new),
        key=lambda each: each[:2],
    )
    for _, of_partition in groupby(tagged, key=lambda each: each[0]):
        sides = {side: block for _, side, block in of_partition}
        yield sides.get(0), sides.get(1)


def _difference(before: RowBlock, after: RowBlock) -> RowChanges:
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
    return RowChanges(None if unchanged_U.all() else _rows(after, ~unchanged_U), before.ids_U[gone_U])


def _rows(block: RowBlock, at: NDArray[np.generic]) -> RowBlock:
    return replace(block, **{field.name: getattr(block, field.name)[at] for field in fields(block)})


def _partition(block: RowBlock) -> int:
    groups = IdPlacement(block.ids_U[:1], PARTITIONS).groups
    return next(number for number, at in enumerate(groups) if len(at))
