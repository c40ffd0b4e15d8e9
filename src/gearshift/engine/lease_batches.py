"""Batches for leases, in order: first the ranges that an interrupted run had begun, then all from a position on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from gearshift.embedding.lookup import IndexedBatch

Open = Callable[[int, int], Generator[IndexedBatch]]  # (start, batch size) -> batches to the end of the data


class LeaseBatches:
    """An iterator of batches whose size can be changed on the way. It keeps what it gave out until it is dropped."""

    def __init__(
        self, open_at: Open, *, position: int, batch: int, ranges: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._open, self.position, self._batch, self._ranges = open_at, position, batch, list(ranges)
        self._batches: Generator[IndexedBatch] | None = None
        self._kept: dict[int, IndexedBatch] = {}  # by first example

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Ranges begun before that were not given out again yet."""
        return list(self._ranges)

    def __iter__(self) -> LeaseBatches:
        return self

    def __next__(self) -> IndexedBatch:
        found = self._again(*self._ranges.pop(0)) if self._ranges else self._next()
        self._kept[found.batch.first] = found
        return found

    def __getitem__(self, first: int) -> IndexedBatch:
        """A batch that was given out and not dropped."""
        return self._kept[first]

    def drop(self, first: int) -> IndexedBatch:
        """Nobody will ask for it again."""
        return self._kept.pop(first)

    def resize(self, batch: int) -> None:
        """Batches not yet given out have this size; what was read ahead is read again."""
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
        found = next(self._batches)
        self.position = found.batch.first + len(found.batch)
        return found

    def _again(self, first: int, count: int) -> IndexedBatch:
        batches = self._open(first, count)
        try:
            return next(batches)
        finally:
            batches.close()
