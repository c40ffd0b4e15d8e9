"""Reads batches ahead of the training step, and brings their rows into memory before they are pulled.

Without chunks the rows of each batch are fetched when the batch has been read, a few batches before its step. In
chunks, the batches of the next chunk are read and their rows are loaded together, in the order of the files, while the
current chunk is trained:

    chunk 1   read, load | train
    chunk 2              | read, load | train
    chunk 3                           | read, load | train

Two chunks are in memory, so a third is read only when the first has been handed over. The first chunks are short, so
that training begins at once. Rows of both chunks are the last to leave. Nothing here changes a result: a row that has
not arrived, or has left again, is fetched when it is pulled.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from gearshift.data.batch import Batch, Ids
from gearshift.data.prefetch import prefetched
from gearshift.embedding.cold_tier import LookAhead
from gearshift.embedding.lookup import IndexedBatch, unique_ids
from gearshift.embedding.store import DiskTier
from gearshift.training.learner import Learner

Chunk = deque[Batch]
CHUNKS_IN_MEMORY = 2
LOADERS = 2  # one waits for the disk, while the other puts rows into memory


class RowsAhead:
    """The rows of learners that train on the same batches. Only the first learner's index of a batch is passed on."""

    def __init__(self, learners: Sequence[Learner], *, cut: bool) -> None:
        self._first, self._others, self._cut = learners[0], learners[1:], cut

    @property
    def policy(self) -> LookAhead | None:
        return self._first.lookahead

    def find(self, batch: Batch) -> IndexedBatch:
        return IndexedBatch(batch, (), ()) if self._cut else self._first.find(batch)

    def prefetch(self, indexed: IndexedBatch) -> None:
        ids = indexed.ids or unique_ids(indexed.batch, self._first.worker.groups)
        for tier, ids_U in self._by_tier(indexed.batch, ids):
            tier.prefetch(ids_U)

    def begin_chunk(self) -> None:
        for tier in self._tiers:
            tier.begin_chunk()

    def expect(self, batch: Batch) -> float:
        ids = unique_ids(batch, self._first.worker.groups)
        return max((tier.expect(ids_U) for tier, ids_U in self._by_tier(batch, ids)), default=0.0)

    def load_expected(self) -> bool:
        return any(tier.load_expected() for tier in self._tiers)  # one store after another

    @property
    def _tiers(self) -> list[DiskTier]:
        learners = (self._first, *self._others)
        return [store.tier for learner in learners for store in learner.server.stores if store.tier]

    def _by_tier(self, batch: Batch, ids: tuple[Ids, ...]) -> list[tuple[DiskTier, Ids]]:
        pairs = list(zip(self._first.server.stores, ids, strict=True))
        for other in self._others:
            same = other.worker.indexes_like(self._first.worker)
            theirs = ids if same else unique_ids(batch, other.worker.groups)
            pairs += zip(other.server.stores, theirs, strict=True)
        return [(store.tier, ids_U) for store, ids_U in pairs if store.tier is not None]


def read_ahead(
    batches: Generator[Batch], learners: Sequence[Learner], workers: int, *, cut: bool = False
) -> Generator[IndexedBatch]:
    """The batches with their distinct ids, in order; without them if the batches will be cut into several leases."""
    rows = RowsAhead(learners, cut=cut)
    if rows.policy is not None and rows.policy.in_chunks:
        indexed = in_chunks(batches, rows, rows.policy)
    else:
        indexed = one_by_one(batches, rows)
    return prefetched(indexed, depth=max(2, workers))


def one_by_one(batches: Generator[Batch], rows: RowsAhead) -> Generator[IndexedBatch]:
    with closing(batches):
        found = map(rows.find, batches)
        yield from found if rows.policy is None else _prefetched_rows(found, rows)


def _prefetched_rows(found: Iterable[IndexedBatch], rows: RowsAhead) -> Generator[IndexedBatch]:
    coming = deque[tuple[IndexedBatch, Future[None]]]()
    with ThreadPoolExecutor(LOADERS, "gearshift-rows") as loaders:
        for indexed in found:
            coming.append((indexed, loaders.submit(rows.prefetch, indexed)))
            if len(coming) > LOADERS:
                yield _loaded(*coming.popleft())
        while coming:
            yield _loaded(*coming.popleft())


def _loaded(indexed: IndexedBatch, loading: Future[None]) -> IndexedBatch:
    loading.result()
    return indexed


def in_chunks(batches: Generator[Batch], rows: RowsAhead, policy: LookAhead) -> Generator[IndexedBatch]:
    room, closed = threading.Semaphore(CHUNKS_IN_MEMORY), threading.Event()
    chunks = prefetched(_loaded_chunks(batches, rows, policy, room, closed), depth=1)
    try:
        for chunk in chunks:
            while chunk:
                yield rows.find(chunk.popleft())
            room.release()
    finally:
        closed.set()
        room.release()  # the thread may be waiting for it
        chunks.close()
        for _ in range(CHUNKS_IN_MEMORY):
            rows.begin_chunk()  # no row is needed by a chunk any more


def _loaded_chunks(
    batches: Generator[Batch],
    rows: RowsAhead,
    policy: LookAhead,
    room: threading.Semaphore,
    closed: threading.Event,
) -> Generator[Chunk]:
    with closing(batches), ThreadPoolExecutor(LOADERS, "gearshift-rows") as loaders:
        for most in map(_most_batches, itertools.count()):
            room.acquire()
            if closed.is_set():
                return
            rows.begin_chunk()
            chunk = _read_chunk(batches, rows, policy, most)
            _load_expected(rows, loaders, closed)
            if closed.is_set() or not chunk:
                return
            yield chunk


def _load_expected(rows: RowsAhead, loaders: ThreadPoolExecutor, closed: threading.Event) -> None:
    def load() -> None:
        while not closed.is_set() and rows.load_expected():
            pass

    for loading in [loaders.submit(load) for _ in range(LOADERS)]:
        loading.result()


def _most_batches(chunk: int) -> int:
    return 1 << min(chunk, 30)


def _read_chunk(batches: Generator[Batch], rows: RowsAhead, policy: LookAhead, most: int) -> Chunk:
    """Reads at most `most` batches, and always at least one."""
    chunk, size, examples = Chunk(), 0, 0
    for batch in batches:
        chunk.append(batch)
        share = rows.expect(batch)
        size, examples = size + batch.memory_bytes(), examples + len(batch)
        enough = policy.chunk_examples is not None and examples >= policy.chunk_examples
        paid = policy.chunk_bytes == 0 or size + size // len(chunk) <= policy.chunk_bytes
        if enough or share >= 1 or not paid or len(chunk) >= most:
            break
    return chunk
