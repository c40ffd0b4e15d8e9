"""Rows for serving: weights alone, in one file that never changes, at float32, bfloat16 or int8 (csrc/row_precision.h).

    gs.write_rows("last", "rows.gsr", precision="int8")
    rows = gs.FrozenRows.open("rows.gsr")
    weights_UW, found_U = rows.lookup(ids_U)

A file has the rows of one store: all features whose embeddings have one width. It does not depend on models or runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.embedding.store import Floats, Ids, RowBlock
from gearshift.errors import UserError, unknown_name

RowPrecision = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class WrittenRows:
    """A file of rows for serving that was written."""

    path: Path
    precision: RowPrecision
    rows: int
    width: int
    bytes: int
    largest_error: float  # of a weight: the difference between what was trained and what is stored


class FrozenRows:
    """The rows of a file that `write_rows` or `gearshift rows` has written, for lookup only.

    It may be used from several threads at once. To replace a file that servers have open, write the new one to the
    same path: whoever has opened the old one keeps it until it opens the path again.
    """

    def __init__(self, rows: _core.FrozenRows, path: Path) -> None:
        """Use `FrozenRows.open`."""
        self._rows, self.path = rows, path

    @staticmethod
    def open(path: str | Path, *, load: bool = False) -> FrozenRows:
        """Opens a file. It is mapped: processes on one machine share its memory, and it is read when it is needed.

        With `load=True` it is read and verified at once, into memory of this process alone.
        """
        try:
            return FrozenRows(_core.FrozenRows(str(path), load), Path(path))
        except OSError as error:
            raise UserError(f"{path} cannot be opened: {error.strerror}") from None

    def lookup(self, ids_U: Ids) -> tuple[Floats, NDArray[np.bool_]]:
        """Weights [ids, width] of 63-bit ids, and which of the ids have a row. Without a row the weights are zeros.

        A damaged file raises `gs.UserError` when a damaged part of it is first used.
        """
        ids_U = np.ascontiguousarray(ids_U)
        if ids_U.ndim != 1 or ids_U.dtype != np.int64:
            raise ValueError(
                f"ids must be a 1-dimensional int64 array, not {ids_U.ndim}-dimensional {ids_U.dtype}"
            )
        weights_UW, found_U = np.empty((len(ids_U), self.width), np.float32), np.empty(len(ids_U), np.bool_)
        self._rows.lookup(ids_U, weights_UW, found_U)
        return weights_UW, found_U

    def verify(self) -> None:
        """Reads the whole file and verifies its checksums."""
        self._rows.verify()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def width(self) -> int:
        """The number of weights of a row, over all its parts."""
        return self._rows.width

    @property
    def parts(self) -> tuple[int, ...]:
        """The widths of a row's parts: the embedding, and a linear weight if the model has one."""
        return tuple(self._rows.parts)

    @property
    def precision(self) -> str:
        """How the weights are stored; `lookup` always returns float32."""
        return self._rows.precision


def precision_named(name: str) -> RowPrecision:
    """Refuses an unknown name."""
    for precision in get_args(RowPrecision):
        if precision == name:
            return cast("RowPrecision", precision)
    raise unknown_name("precision", name, get_args(RowPrecision))


def write_blocks(
    path: Path, blocks: Iterable[RowBlock], parts: Sequence[int], precision: RowPrecision
) -> WrittenRows:
    """Writes the weights of blocks, which come in the order of their partitions."""
    precision = precision_named(precision)
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file, such as {path / 'rows.gsr'}")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    writer = _core.FrozenWriter(str(beside), precision, list(parts))
    for block in blocks:
        writer.add(block.ids_U, block.weights_UW)
    writer.finish()
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(path)
    return WrittenRows(path, precision, writer.rows, sum(parts), path.stat().st_size, writer.largest_error)
