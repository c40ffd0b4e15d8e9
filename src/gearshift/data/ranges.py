"""Reads ranges of examples at increasing positions, for a worker that reads the leases it is given.

A single worker reads all examples sequentially: a thread decodes blocks ahead, and blocks are kept until they are
passed. If other workers own the examples between two leases, only the pieces that contain a lease are decoded, and
the next piece is predicted from the distance between leases. Data that cannot be read in pieces is always read
sequentially; a range far behind reopens it at that position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.examples import PieceAt, pieces_of
from gearshift.data.prefetch import prefetched

FAR = 500_000  # examples that are decoded sequentially rather than skipped
AHEAD = 2  # blocks
OTHERS = 0.5  # leases of other workers between two of ours, from which on they are skipped
MEMORY = 0.2  # smoothing factor of the mean distance
PIECES_KEPT = 4

Shuffle = tuple[int, int] | None  # seed and epoch


class Ranges:
    def __init__(self, dataset: Dataset) -> None:
        piece_at = pieces_of(dataset.examples)
        self._pieces = None if piece_at is None else Pieces(piece_at)
        self._stream = Stream(dataset)
        self._behind = 0  # end of the previous range
        self._distance = 0.0  # mean number of other workers' leases between two of ours

    def read(self, first: int, count: int, shuffle: Shuffle = None) -> Batch:
        """Examples [first, first + count) in the order of `Dataset.batches`."""
        distance = (first - self._behind) / count
        self._behind = first + count
        if distance >= 0:
            self._distance += MEMORY * (distance - self._distance)
        if self._pieces is None or shuffle is not None or (distance >= 0 and self._distance <= OTHERS):
            return self._stream.read(first, count, shuffle)
        if self._distance > OTHERS:
            self._stream.close()
        return self._pieces.read(first, count)

    def skips(self, shuffle: Shuffle = None) -> bool:
        """Whether a range may be read without those before it, and these afterwards, at no great cost."""
        return self._pieces is not None and shuffle is None

    def close(self) -> None:
        self._stream.close()
        if self._pieces is not None:
            self._pieces.close()


class Stream:
    """Sequential reading of all examples; jumps are expensive."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._order: Shuffle = None
        self._source: Generator[Batch] | None = None
        self._blocks: deque[Batch] = deque()
        self._end = 0  # end of the last block read

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
    """Independent reading of pieces, in one thread."""

    def __init__(self, piece_at: PieceAt) -> None:
        self._piece_at = piece_at
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gearshift-read")
        self._known: deque[Batch] = deque(maxlen=PIECES_KEPT)
        self._coming: Future[list[Batch]] | None = None
        self._first = 0  # start of the previous range

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
        """The contiguous known pieces from `first` on, and the position of the first missing one."""
        pieces, at = list[Batch](), first
        while at < first + count:
            piece = next((one for one in self._known if one.first <= at < one.first + len(one)), None)
            if piece is None:
                break
            pieces.append(piece)
            at = piece.first + len(piece)
        return pieces, at

    def _decode(self, at: int, end: int) -> list[Batch]:
        pieces = list[Batch]()
        while at < end:
            try:
                pieces.append(self._piece_at(at))
            except IndexError:
                break  # end of the data
            at = pieces[-1].first + len(pieces[-1])
        return pieces


def _joined(blocks: list[Batch], first: int, count: int) -> Batch:
    if not blocks:
        raise IndexError(f"there is no example {first}: it is past the end of the data")
    return Batch.concat(
        [b.slice(max(first - b.first, 0), min(first + count - b.first, len(b))) for b in blocks]
    )
