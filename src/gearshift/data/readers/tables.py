"""Parquet files and in-memory tables as raw blocks.

Parquet is read one row group at a time, and only the requested columns, so memory does not grow with the data set. A
folder level such as dt=2026-11-01 becomes a text column `dt`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gearshift.data.encode import RawBlock
from gearshift.data.readers.bad_lines import BadLines, SourcePlace
from gearshift.data.readers.files import DataFile, hive_keys, open_raw
from gearshift.errors import UserError

BLOCK_EXAMPLES = 65_536


class TableMark(NamedTuple):
    """The next example to read: its row group and offset for Parquet, its offset (group 0) for a table in memory."""

    file: int
    group: int
    example: int


START = TableMark(0, 0, 0)


def table_block(batch: pa.RecordBatch, name: str, before: int, extra: dict[str, str]) -> RawBlock:
    columns = {field.name: batch.column(i) for i, field in enumerate(batch.schema)}
    for key, value in extra.items():
        columns[key] = pa.repeat(pa.scalar(value), batch.num_rows)
    return RawBlock(batch.num_rows, columns, lambda i: SourcePlace(name, before + i + 1, "example"))


def _check_unique(names: Sequence[str], where: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{where}: several columns are called `{twice[0]}`; give each column a unique name.")


class ParquetSource:
    """Raw blocks of a list of Parquet files."""

    seekable = True

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = tuple(files)
        self.remarks: tuple[str, ...] = ()
        self.columns = tuple(self._names(self.files[0]))
        _check_unique(self.columns, self.files[0].path)
        for file in self.files[1:]:
            other = tuple(self._names(file))
            if set(other) != set(self.columns):
                different = sorted(set(other) ^ set(self.columns))
                raise UserError(
                    f"{file.path}: its columns differ from {self.files[0].path} in {', '.join(different)}."
                )

    def _names(self, file: DataFile) -> list[str]:
        with _parquet(file) as parquet:
            return [*parquet.schema_arrow.names, *hive_keys(file.path)]

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        counts = []
        for file in self.files:
            with _parquet(file) as parquet:
                counts.append(parquet.metadata.num_rows)
        return tuple(counts)

    def count(self) -> int | None:
        return sum(self._counts)

    def estimate(self) -> int:
        return sum(self._counts)

    def mark_before(self, position: int) -> tuple[int, TableMark]:
        """(position, mark) of the last row group that starts at or before the given position."""
        number = int(np.searchsorted(np.cumsum(self._counts), position, side="right"))
        if number == len(self.files):
            return sum(self._counts), TableMark(number, 0, 0)
        at = sum(self._counts[:number])
        with _parquet(self.files[number]) as parquet:
            group = 0
            while at + parquet.metadata.row_group(group).num_rows <= position:
                at += parquet.metadata.row_group(group).num_rows
                group += 1
        return at, TableMark(number, group, 0)

    def blocks(
        self, wanted: Sequence[str], bad_lines: BadLines, start: TableMark = START
    ) -> Iterator[tuple[RawBlock, TableMark | None]]:
        for number in range(start.file, len(self.files)):
            first_group = start.group if number == start.file else 0
            yield from self._file_blocks(number, first_group, wanted)

    def _file_blocks(
        self, number: int, first_group: int, wanted: Sequence[str]
    ) -> Iterator[tuple[RawBlock, TableMark | None]]:
        file = self.files[number]
        extra = {key: value for key, value in hive_keys(file.path).items() if key in wanted}
        columns = [name for name in wanted if name not in extra]
        with _parquet(file) as parquet:
            groups = [parquet.metadata.row_group(g).num_rows for g in range(parquet.metadata.num_row_groups)]
            before = sum(groups[:first_group])
            for group in range(first_group, len(groups)):
                left = groups[group]
                for batch in parquet.iter_batches(
                    BLOCK_EXAMPLES, row_groups=[group], columns=columns, use_threads=False
                ):
                    left -= batch.num_rows
                    behind = TableMark(number, group + 1, 0) if left == 0 else None
                    yield table_block(batch, file.path, before, extra), behind
                    before += batch.num_rows

    def starts(self, column: str) -> Iterator[RawBlock]:
        for number in range(len(self.files)):
            yield from self._group(number, 0, column)

    def tails(self, column: str, numbers: Sequence[int]) -> Iterator[RawBlock]:
        for number in numbers:
            yield from self._group(number, -1, column)

    def _group(self, number: int, at: int, column: str) -> Iterator[RawBlock]:
        """One column of the first (0) or last (-1) row group of a file."""
        file = self.files[number]
        extra = {key: value for key, value in hive_keys(file.path).items() if key == column}
        with _parquet(file) as parquet:
            groups = parquet.metadata.num_row_groups
            if groups <= (1 if at == -1 else 0):  # the last group is also the first
                return
            table = parquet.read_row_group(at % groups, columns=[] if extra else [column], use_threads=False)
            for batch in table.to_batches():
                yield table_block(batch, file.path, 0, extra)


class _parquet:
    """An open Parquet file. An unreadable file raises UserError."""

    def __init__(self, file: DataFile) -> None:
        self._raw = open_raw(file)
        try:
            self._parquet = pq.ParquetFile(self._raw)
        except (pa.ArrowInvalid, OSError) as error:
            self._raw.close()
            what = "is empty" if file.size == 0 else f"is not a readable Parquet file ({error})"
            raise UserError(f"{file.path} {what}.") from None

    def __enter__(self) -> Any:
        return self._parquet

    def __exit__(self, *_: object) -> None:
        self._raw.close()


class TableSource:
    """Raw blocks of a table in memory."""

    files: tuple[DataFile, ...] = ()
    seekable = True

    def __init__(self, table: pa.Table, name: str = "table") -> None:
        _check_unique(table.column_names, name)
        self._table = table.combine_chunks()
        self.name = name
        self.remarks: tuple[str, ...] = ()
        self.columns = tuple(table.column_names)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def count(self) -> int | None:
        return int(self._table.num_rows)

    def estimate(self) -> int:
        return int(self._table.num_rows)

    def mark_before(self, position: int) -> tuple[int, TableMark]:
        return position, TableMark(0, 0, position)

    def blocks(
        self, wanted: Sequence[str], bad_lines: BadLines, start: TableMark = START
    ) -> Iterator[tuple[RawBlock, TableMark | None]]:
        before = start.example
        for batch in self._table.select(list(wanted)).slice(before).to_batches(BLOCK_EXAMPLES):
            yield table_block(batch, self.name, before, {}), TableMark(0, 0, before + batch.num_rows)
            before += batch.num_rows

    def starts(self, column: str) -> Iterator[RawBlock]:
        return (block for block, _ in self.blocks([column], BadLines()))

    def tails(self, column: str, numbers: Sequence[int]) -> Iterator[RawBlock]:
        return iter(())
