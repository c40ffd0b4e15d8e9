"""Examples by range, for one who wants ever later ones: a worker that reads the leases it is given.

One worker reads all examples in passing: blocks are decoded ahead in a thread and kept until they are passed. Where
examples between two leases are other workers', only the pieces in which a lease lies are decoded, and ahead those in
which the next one would lie at the same distance. Data that cannot be read in pieces are always read in passing; a
range far behind opens them anew at its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.examples import PieceAt, pieces_of
from gearshift.data.prefetch import prefetched

FAR = 500_000  # examples that are decoded in passing rather than jumped over
AHEAD = 2  # blocks
OTHERS = 0.5  # leases of others between two of ours, from which on they are jumped over
MEMORY = 0.2  # how fast a mean distance follows
PIECES_KEPT = 4

Shuffle = tuple[int, int] | None  # seed and epoch


class Ranges:
    def __init__(self, dataset: Dataset) -> None:
        piece_at = pieces_of(dataset.examples)
        self._pieces = None if piece_at is None else Pieces(piece_at)
        self._stream = Stream(dataset)
        self._behind = 0  # the range before
        self._distance = 0.0  # leases of others between two, on average

    def read(self, first: int, count: int, shuffle: Shuffle = None) -> Batch:
        """Examples [first, first + count) of the order that `Dataset.batches` has."""
        distance = (first - self._behind) / count
        self._behind = first + count
        if distance >= 0:
            self._distance += MEMORY * (distance - self._distance)
        if self._pieces is None or shuffle is not None or (distance >= 0 and self._distance <= OTHERS):
            return self._stream.read(first, count, shuffle)
        if self._distance > OTHERS:
            self._stream.close()
        return self._pieces.read(first, count)

    def close(self) -> None:
        self._stream.close()
        if self._pieces is not None:
            self._pieces.close()


class Stream:
    """All examples one after the other; jumps cost."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._order: Shuffle = None
        self._source: Generator[Batch] | None = None
        self._blocks: deque[Batch] = deque()
        self._end = 0  # of the last block that was read

    def read(self, first: int, count: int, shuffle: Shuffle) -> Batch:
        begin = self._blocks[0].first if self._blocks else self._end
        if self._source is None or shuffle != self._order or not begin <= first <= self._end + FAR:
            self._open(first, shuffle)
        assert self._source is not None
        while self._end < first + count and (block := next(self._source, None)) is not None:
            self._blocks.append(block)
            self._end = block.first + len(block)
        while self._blocks and self._blocks[0].first + len(self._blocks[0]) <= first:
            self._blocks.popleft()
        return _joined([block for block in self._blocks if block.first < first + count], first, count)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None
            self._blocks.clear()

    def _open(self, first: int, shuffle: Shuffle) -> None:
        self.close()
        self._order, self._end = shuffle, first
        self._source = prefetched(self._dataset.blocks(first, shuffle), AHEAD)


class Pieces:
    """Each piece by itself, in one thread."""

    def __init__(self, piece_at: PieceAt) -> None:
        self._piece_at = piece_at
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gearshift-read")
        self._known: deque[Batch] = deque(maxlen=PIECES_KEPT)
        self._coming: Future[list[Batch]] | None = None
        self._first = 0  # of the range before

    def read(self, first: int, count: int) -> Batch:
        pieces, missing = self._have(first, count)
        if missing < first + count and self._coming is not None:
            self._known.extend(self._coming.result())
            self._coming = None
            pieces, missing = self._have(first, count)
        if missing < first + count:
            fresh = self._thread.submit(self._decode, missing, first + count).result()
            self._known.extend(fresh)
            pieces += fresh
        self._look_ahead(2 * first - self._first, count)
        self._first = first
        return _joined(pieces, first, count)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _look_ahead(self, first: int, count: int) -> None:
        if self._coming is None:
            _, missing = self._have(first, count)
            if missing < first + count:
                self._coming = self._thread.submit(self._decode, missing, first + count)

    def _have(self, first: int, count: int) -> tuple[list[Batch], int]:
        """Pieces that are known, one behind the other, and where the first is missing."""
        found, at = list[Batch](), first
        while at < first + count:
            piece = next((one for one in self._known if one.first <= at < one.first + len(one)), None)
            if piece is None:
                break
            found.append(piece)
            at = piece.first + len(piece)
        return found, at

    def _decode(self, at: int, end: int) -> list[Batch]:
        found = list[Batch]()
        while at < end:
            try:
                found.append(self._piece_at(at))
            except IndexError:
                break  # the data end
            at = found[-1].first + len(found[-1])
        return found


def _joined(blocks: list[Batch], first: int, count: int) -> Batch:
    if not blocks:
        raise IndexError(f"there is no example {first}: the data end before it")
    return Batch.concat(
        [b.slice(max(first - b.first, 0), min(first + count - b.first, len(b))) for b in blocks]
    )
