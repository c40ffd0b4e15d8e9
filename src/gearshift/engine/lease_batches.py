"""Batches for leases, in order: first the open ranges of an interrupted run, then everything after a position."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from gearshift.data.batch import Batch
from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch
from gearshift.parameters.push import LocalPush
from gearshift.sync.strategy import Strategy, cuts

Open = Callable[[int, int], Generator[IndexedBatch]]  # (start, batch size) -> batches to the end of the data
Find = Callable[[Batch], IndexedBatch]


class LeaseBatch:
    """The batch of a lease. Its distinct ids are found when it is first used, by the worker that uses it."""

    def __init__(self, batch: Batch, find: Find, indexed: IndexedBatch | None = None) -> None:
        self.batch, self._find, self._indexed = batch, find, indexed

    def indexed(self) -> IndexedBatch:
        if self._indexed is None:
            self._indexed = self._find(self.batch)
        return self._indexed


@dataclass
class Block:
    """Examples that were read together, with their distinct ids if they are likely to be one lease. Leases of them have
    not ended while `left` is above 0.
    """

    indexed: IndexedBatch
    left: int

    def lease(self, first: int, count: int, find: Find) -> LeaseBatch | None:
        """Its part [first, first + count); None if it does not have it."""
        batch, start = self.indexed.batch, first - self.indexed.batch.first
        if not 0 <= start <= start + count <= len(batch):
            return None
        if count == len(batch) and self.indexed.indices:
            return LeaseBatch(batch, find, self.indexed)
        return LeaseBatch(batch.slice(start, start + count), find)


class LeaseBatches:
    """Blocks of examples, whose size can change, and the leases that they are cut into. A block is kept until all of
    its examples have been dropped.
    """

    def __init__(
        self,
        open_at: Open,
        find: Find,
        *,
        position: int,
        size: int,
        ranges: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._open, self._find, self.position, self._ranges = open_at, find, position, list(ranges)
        self._size = size
        self._batches: Generator[IndexedBatch] | None = None
        self._blocks: dict[int, Block] = {}  # by first example
        self._leases: dict[int, LeaseBatch] = {}  # by first example

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Ranges begun by an interrupted run that have not been returned again yet."""
        return list(self._ranges)

    def next_block(self) -> Batch | None:
        """Reads the next examples; None at the end of the data."""
        indexed = self._again(*self._ranges.pop(0)) if self._ranges else self._next()
        if indexed is None:
            return None
        self._blocks[indexed.batch.first] = Block(indexed, len(indexed.batch))
        return indexed.batch

    def lease(self, first: int, count: int) -> LeaseBatch:
        """The batch of a lease of examples that were read and not dropped."""
        known = self._leases.get(first)
        if known is None or len(known.batch) != count:
            known = self._leases[first] = self._cut(first, count)
        return known

    def drop(self, first: int, count: int) -> LeaseBatch:
        """Forgets the batch of a lease that has ended."""
        ended = self.lease(first, count)
        del self._leases[first]
        block = self._block_of(first, count)
        block.left -= count
        if not block.left:
            del self._blocks[block.indexed.batch.first]
        return ended

    def _cut(self, first: int, count: int) -> LeaseBatch:
        lease = self._block_of(first, count).lease(first, count, self._find)
        assert lease is not None
        return lease

    def _block_of(self, first: int, count: int) -> Block:
        block = self._blocks.get(first)
        if block is None:
            block = next(b for b in self._blocks.values() if b.lease(first, count, self._find) is not None)
        return block

    def resize(self, size: int) -> None:
        """Later blocks have this size; those that were read ahead are read again."""
        if size != self._size:
            self.close()
            self._size = size

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _next(self) -> IndexedBatch | None:
        if self._batches is None:
            self._batches = self._open(self.position, self._size)
        indexed = next(self._batches, None)
        if indexed is not None:
            self.position = indexed.batch.first + len(indexed.batch)
        return indexed

    def _again(self, first: int, count: int) -> IndexedBatch | None:
        batches = self._open(first, count)
        try:
            return next(batches, None)
        finally:
            batches.close()


def examples_at_once(strategy: Strategy) -> int:
    """A strategy that chooses the size of each lease gets a global batch at a time; else a block is a lease."""
    return strategy.global_batch if cuts(strategy) else strategy.batch


def supply_hungry(epoch: Epoch[LocalPush], batches: LeaseBatches) -> None:
    """Supplies batches while workers wait for one, and notifies the epoch when there are no more."""
    while epoch.coordinator.hungry:
        block = batches.next_block()
        strategy = epoch.coordinator.strategy
        if block is None:
            epoch.exhausted()
        else:
            epoch.supply(block.first, len(block), strategy.batch if cuts(strategy) else None)
