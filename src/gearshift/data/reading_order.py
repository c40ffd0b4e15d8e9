"""The order in which the examples of an epoch are read, and the cache of those that fit into memory.

The order depends on (seed, epoch) alone. Examples that fit into memory are shuffled as a whole. Others are shuffled by
blocks: the order of the blocks is permuted, and 16 at a time are mixed. Compressed text cannot be read from the middle,
so its blocks keep their order. A batch's `first` is its position in the order of the epoch; reading can start at any
position.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from gearshift.data.batch import Batch
from gearshift.data.examples import Examples, MemoryExamples, count_examples
from gearshift.errors import UserError

BLOCK_EXAMPLES = 65_536
BLOCKS_MIXED = 16
IN_MEMORY_BYTES = 2 << 30


class ReadingOrder:
    """Reads examples in file order, or in the shuffled order of an epoch."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self._memory: Batch | None = None
        self._counted: int | None = None
        self._too_large = False
        self._order: tuple[tuple[int, int] | None, NDArray[np.int64]] = (None, np.empty(0, np.int64))
        self._loading = Lock()

    def __reduce__(self) -> tuple[type[ReadingOrder], tuple[Examples]]:
        """Another process reads the examples itself: the cache is not sent."""
        return ReadingOrder, (self._examples,)

    def count(self) -> int | None:
        """The number of examples, if it is known without reading them."""
        return self._counted if self._counted is not None else self._examples.count()

    def counted(self) -> int:
        """The exact number of examples. Reads the data once if necessary."""
        count = self.count()
        if count is None:
            count = self._counted = count_examples(self._examples)
        return count

    def blocks(self, start: int, shuffle: tuple[int, int] | None) -> Iterator[Batch]:
        """All examples from position `start` on, in pieces of any size."""
        return self._in_order(start) if shuffle is None else self._shuffled(start, shuffle)

    def read(self, first: int, count: int, shuffle: tuple[int, int] | None = None) -> Batch:
        """Examples [first, first + count) of the order, fewer at the end."""
        blocks = self._in_order(first) if shuffle is None else self._shuffled(first, shuffle, count)
        for batch in cut(blocks, count):
            return batch
        raise IndexError(f"there is no example {first}: the data ends before it")

    def _in_order(self, start: int) -> Iterator[Batch]:
        if self._memory is not None:
            return MemoryExamples(self._memory, self._examples.schema).blocks(start)
        return self._examples.blocks(start)

    def _shuffled(self, start: int, shuffle: tuple[int, int], most: int = sys.maxsize) -> Iterator[Batch]:
        """The same examples in blocks of at most `most`."""
        size = min(most, BLOCK_EXAMPLES)
        if self._fits_memory():
            assert self._memory is not None
            order = self._permutation(shuffle)
            for first in range(start, len(order), size):
                yield self._memory.take(order[first : first + size]).moved(first)
            return
        for position, window in self._windows(start, shuffle):
            order = np.random.default_rng((*shuffle, position)).permutation(len(window))
            for first in range(max(start - position, 0), len(order), size):
                yield window.take(order[first : first + size]).moved(position + first)

    def _permutation(self, shuffle: tuple[int, int]) -> NDArray[np.int64]:
        """The order of all examples in memory. It is kept, because workers read an epoch range by range."""
        known, order = self._order
        if known != shuffle:
            assert self._memory is not None
            order = np.random.default_rng(shuffle).permutation(len(self._memory))
            self._order = (shuffle, order)
        return order

    def _windows(self, start: int, shuffle: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        """(position in the order, examples) of each group of blocks that is mixed, from `start` on."""
        window = BLOCKS_MIXED * BLOCK_EXAMPLES
        if not self._examples.seekable:
            first = start // window * window
            for batch in cut(self._examples.blocks(first), window):
                yield batch.first, batch
            return
        count = self.counted()
        firsts = np.random.default_rng(shuffle).permutation(np.arange(0, count, BLOCK_EXAMPLES))
        position = 0
        for group in range(0, len(firsts), BLOCKS_MIXED):
            chosen = firsts[group : group + BLOCKS_MIXED]
            size = int(np.minimum(count - chosen, BLOCK_EXAMPLES).sum())
            if position + size > start:
                yield position, Batch.concat([self.read(int(f), BLOCK_EXAMPLES) for f in chosen])
            position += size

    def _fits_memory(self) -> bool:
        if self._memory is None and isinstance(self._examples, MemoryExamples):
            self._memory = self._examples.batch
        with self._loading:
            if self._memory is None and not self._too_large:
                try:
                    self._memory = load(self._examples, IN_MEMORY_BYTES)
                except MemoryError:
                    self._too_large = True
        return self._memory is not None


def load(examples: Examples, limit: int | None = None) -> Batch:
    """All examples as one batch; MemoryError if they need more than `limit` bytes."""
    blocks: list[Batch] = []
    size = 0
    for block in examples.blocks(0):
        size += block.memory_bytes()
        blocks.append(block)
        if limit is not None and size > limit:
            raise MemoryError
    if not blocks:
        raise UserError("there are no examples: the data is empty.")
    return Batch.concat(blocks)


def cut(blocks: Iterator[Batch], size: int) -> Iterator[Batch]:
    """Blocks of any size to batches of one size; copies only where a batch crosses the end of a block."""
    waiting: list[Batch] = []
    missing = size
    for block in blocks:
        at = 0
        while len(block) - at >= missing:
            waiting.append(block.slice(at, at + missing))
            yield Batch.concat(waiting)
            at += missing
            waiting, missing = [], size
        if at < len(block):
            waiting.append(block.slice(at, len(block)))
            missing -= len(block) - at
    if waiting:
        yield Batch.concat(waiting)
