"""Examples by range, for one who wants ever later ones: a worker that reads the leases it is given.

Blocks are decoded ahead in a thread and kept until they are passed. A range before them, or far behind them, opens the
data anew at its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.prefetch import prefetched

FAR = 500_000  # examples that are decoded in passing rather than jumped over
AHEAD = 2  # blocks

Shuffle = tuple[int, int] | None  # seed and epoch


class Ranges:
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._order: Shuffle = None
        self._source: Generator[Batch] | None = None
        self._blocks: deque[Batch] = deque()
        self._end = 0  # of the last block that was read

    def read(self, first: int, count: int, shuffle: Shuffle = None) -> Batch:
        """Examples [first, first + count) of the order that `Dataset.batches` has."""
        begin = self._blocks[0].first if self._blocks else self._end
        if self._source is None or shuffle != self._order or not begin <= first <= self._end + FAR:
            self._open(first, shuffle)
        assert self._source is not None
        while self._end < first + count and (block := next(self._source, None)) is not None:
            self._blocks.append(block)
            self._end = block.first + len(block)
        while self._blocks and self._blocks[0].first + len(self._blocks[0]) <= first:
            self._blocks.popleft()
        parts = [
            block.slice(max(first - block.first, 0), min(first + count - block.first, len(block)))
            for block in self._blocks
            if block.first < first + count
        ]
        if not parts:
            raise IndexError(f"there is no example {first}: the data end before it")
        return Batch.concat(parts)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _open(self, first: int, shuffle: Shuffle) -> None:
        self.close()
        self._blocks.clear()
        self._order, self._end = shuffle, first
        self._source = prefetched(self._dataset.blocks(first, shuffle), AHEAD)
