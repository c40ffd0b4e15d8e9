"""Batches for leases, in order: first the ranges that an interrupted run had begun, then all from a position on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from gearshift.embedding.lookup import Found

Open = Callable[[int, int], Generator[Found]]  # (start, batch size) -> batches to the end of the data


class Feed:
    """An iterator of batches whose size can be changed on the way."""

    def __init__(
        self, open_at: Open, *, position: int, batch: int, ranges: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._open, self.position, self._batch, self._ranges = open_at, position, batch, list(ranges)
        self._batches: Generator[Found] | None = None

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Ranges begun before that were not given out again yet."""
        return list(self._ranges)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Found:
        if self._ranges:
            return self._again(*self._ranges.pop(0))
        if self._batches is None:
            self._batches = self._open(self.position, self._batch)
        found = next(self._batches)
        self.position = found.batch.first + len(found.batch)
        return found

    def resize(self, batch: int) -> None:
        """Batches not yet given out have this size; what was read ahead is read again."""
        if batch != self._batch:
            self.close()
            self._batch = batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _again(self, first: int, count: int) -> Found:
        batches = self._open(first, count)
        try:
            return next(batches)
        finally:
            batches.close()
