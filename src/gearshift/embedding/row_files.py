"""Row files as checkpoints and deltas hold them: stacks of files, newest first, each with the rows of some partitions.

The C++ core reads and writes them (csrc/row_file.h). Files never change, so checkpoints and stores share them by links.
Rows are in 256 partitions by the hash of their id, which stores, shards and files share.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from gearshift import _core
from gearshift.embedding.store import Ids, RowBlock, RowStack

SUFFIX = ".gsr"
PARTITIONS, GROUPS = 256, 16
GROUP_PARTITIONS = PARTITIONS // GROUPS
FILE_BYTES = (
    32 << 20
)  # a file smaller than this has the rows of several groups, if they are next to each other
ANY_LAYOUT = 0  # of rows whose optimizers are not known
NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True)
class PartitionChanges:
    """The rows of a partition that are new or differ, each sorted by id, and the ids of those that are gone."""

    partition: int
    changed: RowBlock
    erased_U: Ids


def blocks_of(stack: RowStack) -> Iterator[RowBlock]:
    """One block per partition that has rows, each sorted by id."""
    reader = _reader(stack)
    for partition in range(*reader.partitions):
        block = RowBlock(*reader.read_partition(partition))
        if len(block.ids_U):
            yield block


def changes_in(stack: RowStack) -> Iterator[PartitionChanges]:
    """Like `blocks_of`, with the tombstones."""
    reader = _reader(stack)
    for partition in range(*reader.partitions):
        block, erased_U = reader.read_changes(partition)
        if len(block[0]) or len(erased_U):
            yield PartitionChanges(partition, RowBlock(*block), erased_U)


def write_changes(
    folder: Path, name: str, changes: Iterable[PartitionChanges], layout: int = ANY_LAYOUT
) -> list[RowStack]:
    """Writes rows and tombstones of ascending partitions, as stacks of one file each.

    `layout` is that of the store that the rows are for; without it, a store loads them row by row.
    """
    stacks: list[RowStack] = []
    writer: _core.RowFileWriter | None = None
    group, size = -1, 0
    for each in changes:
        if each.partition // GROUP_PARTITIONS != group and size >= FILE_BYTES and writer is not None:
            writer.finish()
            writer, size = None, 0
        group = each.partition // GROUP_PARTITIONS
        if writer is None:
            stacks.append(RowStack(f"{name}-{group:02d}", (folder / f"{name}-{group:02d}-000{SUFFIX}",)))
            widths = each.changed.weights_UW.shape[1], each.changed.state_US.shape[1]
            writer = _core.RowFileWriter(str(stacks[-1].files[0]), *widths, layout)
        rows = each.changed
        writer.add(
            rows.ids_U,
            rows.weights_UW,
            rows.state_US,
            rows.touches_U,
            rows.last_step_U,
            rows.updates_U,
            rows.tables_U,
            each.erased_U,
        )
        size += sum(getattr(each.changed, field.name).nbytes for field in fields(RowBlock))
    if writer is not None:
        writer.finish()
    return stacks


def verify(file: Path) -> None:
    """Reads all of the file, and raises `RowFileError` if it is damaged."""
    reader = _core.RowStack([str(file)])
    for partition in range(*reader.partitions):
        reader.read_changes(partition)


def groups_of(stack: RowStack) -> range:
    """The groups of partitions in which it has rows."""
    begin, end = _reader(stack).partitions
    return range(begin // GROUP_PARTITIONS, -(-end // GROUP_PARTITIONS))


def layout_of(stack: RowStack) -> int:
    """The hash of the widths and optimizers of its rows."""
    return _reader(stack).layout_hash


def _reader(stack: RowStack) -> _core.RowStack:
    return _core.RowStack([str(file) for file in stack.files])


def link_files(name: str, files: Sequence[Path], folder: Path) -> RowStack:
    """The stack in another folder."""
    linked = tuple(folder / f"{name}-{age:03d}{SUFFIX}" for age in range(len(files)))
    for source, target in zip(files, linked, strict=True):
        if source != target:
            link_or_copy(source, target)
    return RowStack(name, linked)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def checksum(file: Path) -> str:
    """The checksum of the complete content, which is stored in the file; its tail and its index are verified."""
    return f"{_core.row_file_checksum(str(file)):016x}"
