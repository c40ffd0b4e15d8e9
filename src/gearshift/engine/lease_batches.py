"""Batches for leases, in order: first the open ranges of an interrupted run, then everything after a position."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch
from gearshift.parameters.push import LocalPush

Open = Callable[[int, int], Generator[IndexedBatch]]  # (start, batch size) -> batches to the end of the data


class LeaseBatches:
    """An iterator of batches whose size can change. It keeps each returned batch until `drop` is called."""

    def __init__(
        self, open_at: Open, *, position: int, batch: int, ranges: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._open, self.position, self._batch, self._ranges = open_at, position, batch, list(ranges)
        self._batches: Generator[IndexedBatch] | None = None
        self._kept: dict[int, IndexedBatch] = {}  # by first example

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Ranges begun by an interrupted run that have not been returned again yet."""
        return list(self._ranges)

    def __iter__(self) -> LeaseBatches:
        return self

    def __next__(self) -> IndexedBatch:
        indexed = self._again(*self._ranges.pop(0)) if self._ranges else self._next()
        self._kept[indexed.batch.first] = indexed
        return indexed

    def __getitem__(self, first: int) -> IndexedBatch:
        """A batch that was returned and not dropped."""
        return self._kept[first]

    def drop(self, first: int) -> IndexedBatch:
        """Forgets a batch that is no longer needed."""
        return self._kept.pop(first)

    def resize(self, batch: int) -> None:
        """Later batches have this size; batches that were read ahead are read again."""
        if batch != self._batch:
            self.close()
            self._batch = batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _next(self) -> IndexedBatch:
        if self._batches is None:
            self._batches = self._open(self.position, self._batch)
        indexed = next(self._batches)
        self.position = indexed.batch.first + len(indexed.batch)
        return indexed

    def _again(self, first: int, count: int) -> IndexedBatch:
        batches = self._open(first, count)
        try:
            return next(batches)
        finally:
            batches.close()


def supply_hungry(epoch: Epoch[LocalPush], batches: LeaseBatches) -> None:
    """Supplies batches while workers wait for one, and notifies the epoch when there are no more."""
    while epoch.hungry:
        indexed = next(batches, None)
        if indexed is None:
            epoch.exhausted()
        else:
            epoch.supply(indexed.batch.first, len(indexed.batch))
