"""Batches read ahead in chunks: all, in order, at most two chunks in memory; the thread ends with its reader."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import cast

import numpy as np
import pytest

from gearshift.data.batch import Batch
from gearshift.embedding.cold_tier import LookAhead
from gearshift.embedding.lookup import IndexedBatch
from gearshift.training.look_ahead import LOADERS, RowsAhead, in_chunks, one_by_one


class Rows:
    """Notes what is asked of it; a chunk is full after `room` batches."""

    def __init__(self, room: int) -> None:
        self.room, self.log, self.policy = room, list[str](), LookAhead(None, 1 << 40)
        self._expected = 0

    def find(self, batch: Batch) -> IndexedBatch:
        return IndexedBatch(batch, (), ())

    def prefetch(self, indexed: IndexedBatch) -> None:
        self.log.append(f"prefetch {indexed.batch.first}")

    def begin_chunk(self) -> None:
        self.log.append("begin")
        self._expected = 0

    def expect(self, batch: Batch) -> float:
        self.log.append(f"expect {batch.first}")
        self._expected += 1
        return self._expected / self.room

    def load_expected(self) -> bool:
        self.log.append("load")
        return False


def batches(count: int, taken: list[int]) -> Generator[Batch]:
    empty_B0 = np.zeros((2, 0), np.float32)
    for first in range(0, 2 * count, 2):
        taken.append(first)
        yield Batch(first, empty_B0, empty_B0, np.zeros((2, 1), np.int64))


def opened(rows: Rows, count: int, taken: list[int]) -> Generator[IndexedBatch]:
    return in_chunks(batches(count, taken), cast(RowsAhead, rows), rows.policy)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
def test_all_batches_come_in_order(count: int) -> None:
    rows = Rows(room=4)
    assert [indexed.batch.first for indexed in opened(rows, count, [])] == list(range(0, 2 * count, 2))
    assert [line for line in rows.log if line.startswith("expect")] == [
        f"expect {first}" for first in range(0, 2 * count, 2)
    ]


def test_the_first_chunks_are_short_and_each_is_loaded_before_it_is_handed_over() -> None:
    rows = Rows(room=4)
    list(opened(rows, 11, []))
    text = " ".join("." if line.startswith("expect") else line for line in rows.log)
    chunks = [1, 2, 4, 4]
    assert text.startswith(" ".join(f"begin {'. ' * n}{' '.join(['load'] * LOADERS)}" for n in chunks))


def test_two_chunks_are_in_memory() -> None:
    taken: list[int] = []
    rows = Rows(room=4)
    reading = opened(rows, 100, taken)
    for _ in range(1 + 2 + 1):  # the third chunk has begun
        next(reading)
    for _ in range(200):
        threading.Event().wait(0.005)
        if len(taken) == 1 + 2 + 4 + 4:
            break
    threading.Event().wait(0.05)
    assert len(taken) == 1 + 2 + 4 + 4
    reading.close()


def test_a_reader_that_stops_in_a_chunk_leaves_no_thread_and_no_protected_row() -> None:
    before = threading.active_count()
    rows = Rows(room=4)
    reading = opened(rows, 1000, [])
    for _ in range(5):
        next(reading)
    reading.close()
    assert threading.active_count() == before
    assert rows.log[-2:] == ["begin", "begin"]


def test_without_chunks_each_batch_is_prefetched_when_it_has_been_read() -> None:
    rows = Rows(room=4)
    assert len(list(one_by_one(batches(3, []), cast(RowsAhead, rows)))) == 3
    assert rows.log == ["prefetch 0", "prefetch 2", "prefetch 4"]


def test_off_reads_nothing_ahead() -> None:
    rows = Rows(room=4)
    rows.policy = None  # type: ignore[assignment]
    assert len(list(one_by_one(batches(3, []), cast(RowsAhead, rows)))) == 3
    assert not rows.log


@pytest.mark.parametrize(
    ("policy", "room", "expected"),
    [
        (LookAhead(6), 100, 3),  # of two examples each
        (LookAhead(600), 4, 4),  # its rows take their share of the memory
        (LookAhead(600, 1), 100, 1),  # its batches take theirs
    ],
)
def test_a_number_of_examples_is_the_most_of_a_chunk(policy: LookAhead, room: int, expected: int) -> None:
    rows = Rows(room)
    rows.policy = policy
    list(opened(rows, 30, []))
    chunks = "\n".join(rows.log).split("begin")
    assert max(chunk.count("expect") for chunk in chunks) == expected
