"""Row files as checkpoints hold them: stacks of files, newest first, each stack with the rows of some partitions.

The C++ core reads and writes them (csrc/row_file.h). Files never change, so checkpoints and stores share them with hard
links.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gearshift import _core
from gearshift.embedding.store import RowBlock, RowStack

SUFFIX = ".gsr"


def blocks_of(stack: RowStack) -> Iterator[RowBlock]:
    """One block per partition that has rows, each sorted by id."""
    reader = _core.RowStack([str(file) for file in stack.files])
    for partition in range(*reader.partitions):
        block = RowBlock(*reader.read_partition(partition))
        if len(block.ids_U):
            yield block


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
