"""How many rows fit in the memory of a store with a disk tier, and what a row takes in memory and on disk.

The arithmetic of csrc/row_tier.cpp and csrc/row_file.h, for settings and for the plan before a run. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS, SLAB_BYTES, SLAB_ROWS = 256, 4 << 10, 16  # as in C++: a partition has at least one slab
PARTITION_BYTES = 256  # of a partition without rows
LARGE_SLAB_BYTES = 16 << 10  # of a store with more than little memory
LITTLE_MEMORY = 256 << 20
INDEX_SHARE = 2  # the index of the files may take half of the budget: beyond it, few rows stay in memory
BUFFER_SHARE, MOST_BUFFER_BYTES = 8, 256 << 20  # for rows that are about to be written; csrc/row_tier.cpp
INDEX_BYTES_PER_STORED_ROW, MOST_SPACE = 1.7, 2  # of rows on disk; stored rows per live row
BLOCK_BYTES, BLOCK_HEAD, ROW_HEAD = 4096, 16, 20  # of a row file; a row's head is its id and counts


def minimum_bytes(floats: int) -> int:
    """The minimum budget of a store with this many floats per row, including optimizer state."""
    return 2 * PARTITIONS * max(SLAB_BYTES, SLAB_ROWS * (16 + 4 * floats))


def with_buffers(size: int) -> int:
    """The budget of which so much can be used: an eighth is for rows that are about to be written."""
    return size * BUFFER_SHARE // (BUFFER_SHARE - 1)


@dataclass(frozen=True)
class HotRows:
    """How many rows a store has in memory."""

    most: int  # all of them, if there are no more
    usual: int  # otherwise: each time that a partition is full, some of its rows leave


def hot_rows(budget: int, floats: int, stored: float = 0, sketch: int = 0, shards: int = 1) -> HotRows:
    """What fits in the budget of all shards, if `stored` rows are in files: the arithmetic of csrc/row_tier.cpp.

    A shard has its part of the partitions, and divides its own budget among them.
    """
    own, row, partitions = budget / shards, 4 * floats + 12 + 36, -(-PARTITIONS // shards)
    work = min(max(own / 64, 128 << 10), 4 << 20)
    rows_of_slab = max(16, (SLAB_BYTES if own < LITTLE_MEMORY else LARGE_SLAB_BYTES) // (row - 36))
    partition = PARTITION_BYTES + rows_of_slab * (row - 36 + 16)
    index = index_bytes(stored / shards)
    taken = min(own / BUFFER_SHARE, MOST_BUFFER_BYTES) + 7 * work + index + sketch / shards
    fitting = max(0.0, (own - taken) / partitions - partition) / row
    quota = max(1.0, fitting - max(fitting / 33, min(32, fitting / 2)))
    leaving = max(quota / 32, min(32, quota / 8))
    return HotRows(int(quota * PARTITIONS), int((quota - leaving / 2) * PARTITIONS))


def index_bytes(stored: float) -> float:
    """Of the files with so many rows, and of one in the making."""
    return stored * INDEX_BYTES_PER_STORED_ROW * 9 / 8


def disk_bytes_per_row(floats: int) -> float:
    row = 4 * floats + ROW_HEAD
    blocks = -(-(row + BLOCK_HEAD) // BLOCK_BYTES)
    return blocks * BLOCK_BYTES / max(1, (blocks * BLOCK_BYTES - BLOCK_HEAD) // row)
