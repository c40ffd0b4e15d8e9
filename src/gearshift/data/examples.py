"""Examples by position: the common interface of all data, and its basic implementations.

Position p refers to the same example in every pass, so work can be leased, reissued and resumed. Blocks have any
size; `dataset.py` turns them into batches of equal size. Sources without random access (compressed text) are read
from the start up to the requested position.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gearshift.data.batch import Batch
from gearshift.data.encode import Encoder, RawBlock, check_columns, wanted_columns
from gearshift.data.missing_columns import MissingColumnsMode, absent_features, without_roles
from gearshift.data.readers.bad_lines import BadLines
from gearshift.data.readers.files import DataFile
from gearshift.data.schema import Schema
from gearshift.errors import UserError


class Examples(Protocol):
    """The contents of a data set. The synthetic click log and prepared folders implement it too."""

    schema: Schema
    seekable: bool  # whether starting at a position is cheap

    def count(self) -> int | None:
        """The number of examples, if it is known without reading them."""

    def estimate(self) -> int:
        """The number of examples, or an estimate from the size of the files."""

    def blocks(self, first: int) -> Iterator[Batch]:
        """All examples from position `first` on, in order. `Batch.first` is the position of a block."""

    def with_schema(self, schema: Schema) -> Examples: ...

    def time_range(self) -> tuple[int, int] | None:
        """First and last time in epoch seconds, without reading all data; None if there is no time column."""

    def describe(self) -> tuple[str, str]:
        """(description, a remark or ""), for one line in the terminal."""


PieceAt = Callable[[int], Batch]  # the piece that contains this position; IndexError past the end


@runtime_checkable
class InPieces(Protocol):
    """Examples that can be read in independent pieces."""

    def pieces(self) -> PieceAt:
        """A function that reads pieces. Use each function in one thread only."""


def pieces_of(examples: Examples) -> PieceAt | None:
    """A reader of pieces, or None if everything before an example may have to be read too."""
    if isinstance(examples, HeadExamples):
        return pieces_of(examples.inner)
    return examples.pieces() if isinstance(examples, InPieces) else None


class RawSource(Protocol):
    """Raw columns of files or of a table. A mark is a position from which reading can restart."""

    files: tuple[DataFile, ...]
    columns: tuple[str, ...]
    remarks: tuple[str, ...]  # warnings for the user about how the files are read

    @property
    def seekable(self) -> bool: ...
    def count(self) -> int | None: ...
    def estimate(self) -> int: ...
    def blocks(
        self, wanted: Sequence[str], bad_lines: BadLines, start: Any = ...
    ) -> Iterator[tuple[RawBlock, Any]]: ...
    def starts(self, column: str) -> Iterator[RawBlock]:
        """Examples from the start of each file, for one column; one block per file if there are files."""

    def tails(self, column: str, numbers: Sequence[int]) -> Iterator[RawBlock]:
        """Examples from the ends of these files."""


class ReadMarks:
    """The known restart positions: (position, mark) pairs in order."""

    def __init__(self, start: Any) -> None:
        self._positions = [0]
        self._marks = [start]
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[ReadMarks], tuple[Any]]:
        """Pickle only the first mark. Another process finds its own marks."""
        return ReadMarks, (self._marks[0],)

    def add(self, position: int, mark: Any) -> None:
        with self._lock:
            if position > self._positions[-1]:
                self._positions.append(position)
                self._marks.append(mark)
            elif position == self._positions[-1]:
                self._marks[-1] = mark

    def before(self, position: int) -> tuple[int, Any]:
        with self._lock:
            at = bisect_right(self._positions, position) - 1
            return self._positions[at], self._marks[at]


class RawExamples:
    """A raw source read through a schema."""

    def __init__(
        self,
        source: RawSource,
        schema: Schema,
        bad_lines: BadLines,
        *,
        labelled: bool = True,
        missing_columns: MissingColumnsMode = "fail",
    ) -> None:
        """With `missing_columns="as_missing"`, a feature without a column is missing in every example."""
        if schema.decimal is not None and hasattr(source, "with_marks"):
            source = source.with_marks(schema.decimal, schema.thousands or "")
        self.source = source
        self.bad_lines = bad_lines
        self.labelled = labelled
        self.missing_columns: MissingColumnsMode = missing_columns
        self.where = source.files[0].path if source.files else "the table"
        self.schema = schema = without_roles(
            schema, source.columns, labelled=labelled, missing_columns=missing_columns
        )
        self.absent: tuple[str, ...] = ()
        if missing_columns == "as_missing":
            self.absent = absent_features(schema, source.columns, self.where)
        check_columns(schema, (*source.columns, *self.absent), self.where, labelled=labelled)
        self.seekable = source.seekable
        self._marks = ReadMarks(None)
        self.wanted = wanted_columns(schema, labelled=labelled)

    def count(self) -> int | None:
        return self.source.count() if self.bad_lines.allowed == 0 else None

    def estimate(self) -> int:
        return self.source.estimate()

    def raw_blocks(self, mark: Any) -> Iterator[tuple[RawBlock, Any]]:
        wanted = [name for name in self.wanted if name not in self.absent]
        start = () if mark is None else (mark,)
        for block, behind in self.source.blocks(wanted, self.bad_lines, *start):
            yield self._filled(block), behind

    def _filled(self, block: RawBlock) -> RawBlock:
        if not self.absent:
            return block
        nothing = pa.nulls(block.size, pa.string())
        return replace(block, columns={**block.columns, **dict.fromkeys(self.absent, nothing)})

    def blocks(self, first: int) -> Iterator[Batch]:
        encoder = Encoder(self.schema, self.bad_lines, labelled=self.labelled)
        position, mark = self._start(first)
        for block, behind in self.raw_blocks(mark):
            if position + block.size <= first and self.bad_lines.allowed == 0:
                position += block.size  # before `first`: need not be converted
            else:
                batch = encoder.encode(block, position)
                position += len(batch)
                if position > first:
                    skip = max(first - batch.first, 0)
                    yield batch.slice(skip, len(batch)) if skip else batch
            if behind is not None:
                self._marks.add(position, behind)
        if position == 0:
            raise UserError(
                f"{self.where} has no examples" + (", only a header." if self.source.files else ".")
            )

    def locate(self, first: int, count: int) -> str:
        """File and lines of these examples (of their first block), for messages. Reads them again."""
        position, mark = self._start(first)
        for block, _ in self.raw_blocks(mark):
            good = self._survivors(block)
            if first < position + len(good):
                chosen = good[first - position : first - position + count]
                return f"{block.place(int(chosen[0]))}-{block.place(int(chosen[-1])).number:,}"
            position += len(good)
        return in_words(first, count)

    def _survivors(self, block: RawBlock) -> NDArray[np.int64]:
        """The examples of a block that are not skipped as bad lines."""
        good = None
        if self.bad_lines.allowed:
            from gearshift.data.fitted_transforms import plain_schema

            encoder = Encoder(plain_schema(self.schema), self.bad_lines, labelled=self.labelled)
            _, good = encoder.encode_some(block)
        return np.arange(block.size) if good is None else good

    def count_by_reading(self) -> int:
        """Count the examples. Converts them only if lines may be skipped; records restart positions."""
        if self.bad_lines.allowed:
            return sum(len(block) for block in _plain(self).blocks(0))
        position = 0
        for block, behind in self.raw_blocks(None):
            position += block.size
            if behind is not None:
                self._marks.add(position, behind)
        return position

    def _start(self, first: int) -> tuple[int, Any]:
        jump = getattr(self.source, "mark_before", None)
        if jump is not None and self.bad_lines.allowed == 0:
            position, mark = jump(first)
            return int(position), mark
        return self._marks.before(first)

    def with_schema(self, schema: Schema) -> RawExamples:
        return RawExamples(
            self.source,
            schema,
            self.bad_lines,
            labelled=self.labelled,
            missing_columns=self.missing_columns,
        )

    def time_range(self) -> tuple[int, int] | None:
        if self.schema.time is None:
            return None
        encoder = Encoder(Schema((), (), self.schema.time), BadLines(allowed=sys.maxsize))
        column, last = self.schema.time, len(self.source.files) - 1
        times = [_times(encoder, block) for block in self.source.starts(column)]
        ends: Sequence[int] = range(last + 1)
        if (
            not self.seekable
        ):  # finding the end takes a pass over a file, so only the file that starts last is read
            ends = sorted({max(ends, key=lambda i: times[i].max(initial=0)), last})
        times += [_times(encoder, block) for block in self.source.tails(column, ends)]
        return _span(times)

    def describe(self) -> tuple[str, str]:
        files = self.source.files
        ignored = [name for name in self.source.columns if name not in self.wanted]
        what = _files_and_size(files) if files else f"a table of {self.source.estimate():,} examples"
        return what, f"Ignored columns: {', '.join(ignored)}" if ignored else ""


def in_words(first: int, count: int) -> str:
    return f"examples {first:,}-{first + count - 1:,}"


def locate(examples: Examples, first: int, count: int) -> str:
    """The origin of the examples: file and lines if they are known."""
    known = getattr(examples, "locate", None)
    return str(known(first, count)) if known else in_words(first, count)


def count_examples(examples: Examples) -> int:
    """The number of examples, counted by reading all of them."""
    if isinstance(examples, RawExamples):
        return examples.count_by_reading()
    return sum(len(block) for block in _plain(examples).blocks(0))


def _plain(examples: Examples) -> Examples:
    """The same examples without fitted numbers: sufficient to count them and to find bad lines."""
    from gearshift.data.fitted_transforms import plain_schema

    return examples.with_schema(plain_schema(examples.schema))


def _times(encoder: Encoder, block: RawBlock) -> NDArray[np.int64]:
    times = encoder.encode(block).times_B
    assert times is not None
    return times


def _span(times: Sequence[NDArray[np.int64]]) -> tuple[int, int] | None:
    known = [t for t in times if len(t)]
    return (int(min(t.min() for t in known)), int(max(t.max() for t in known))) if known else None


def _files_and_size(files: Sequence[DataFile]) -> str:
    size = sum(f.size for f in files)
    unit = (
        f"{size / 1e9:.1f} GB"
        if size >= 1e9
        else f"{size / 1e6:.1f} MB"
        if size >= 1e6
        else f"{size / 1e3:.1f} kB"
    )
    return f"{len(files)} files, {unit}" if len(files) > 1 else f"{files[0].path}, {unit}"


class MemoryExamples:
    """A batch that is already in memory."""

    seekable = True

    def __init__(self, batch: Batch, schema: Schema) -> None:
        self.batch = batch
        self.schema = schema

    def count(self) -> int | None:
        return len(self.batch)

    def estimate(self) -> int:
        return len(self.batch)

    def blocks(self, first: int) -> Iterator[Batch]:
        if first < len(self.batch):
            batch = self.batch.slice(first, len(self.batch))
            yield batch.moved(first)

    def with_schema(self, schema: Schema) -> MemoryExamples:
        if schema.features != self.schema.features:
            raise ValueError(
                "examples in memory are already encoded; read the source again with the new schema"
            )
        return MemoryExamples(self.batch, schema)

    def time_range(self) -> tuple[int, int] | None:
        return None if self.batch.times_B is None else _span([self.batch.times_B])

    def describe(self) -> tuple[str, str]:
        return f"{len(self.batch):,} examples in memory", ""


class HeadExamples:
    """The first `limit` examples of another source."""

    def __init__(self, inner: Examples, limit: int) -> None:
        self.inner = inner
        self.limit = limit
        self.schema = inner.schema
        self.seekable = inner.seekable

    @property
    def bad_lines(self) -> BadLines | None:
        return getattr(self.inner, "bad_lines", None)

    def count(self) -> int | None:
        inner = self.inner.count()
        return None if inner is None else min(inner, self.limit)

    def estimate(self) -> int:
        return min(self.inner.estimate(), self.limit)

    def blocks(self, first: int) -> Iterator[Batch]:
        if first >= self.limit:
            return
        for block in self.inner.blocks(first):
            left = self.limit - block.first
            yield block if len(block) < left else block.slice(0, left)
            if len(block) >= left:
                return

    def locate(self, first: int, count: int) -> str:
        return locate(self.inner, first, count)

    def with_schema(self, schema: Schema) -> HeadExamples:
        return HeadExamples(self.inner.with_schema(schema), self.limit)

    def time_range(self) -> tuple[int, int] | None:
        """The range of all examples of the source: an upper bound."""
        return self.inner.time_range()

    def describe(self) -> tuple[str, str]:
        what, remark = self.inner.describe()
        return f"the first {self.limit:,} examples of {what}", remark


@dataclass(frozen=True)
class Choice:
    """A selection of examples: one part of the data."""

    select: Callable[[Batch, Schema], NDArray[np.bool_]]
    share: float  # approximate share of the examples
    words: str
    bounds: tuple[int | None, int | None] = (None, None)  # time range, for a selection by time
    column: str | None = None  # a column whose ids `select` needs; read in addition if it is not a field
    by_place: bool = False  # selected by position in the files


class FilteredExamples:
    """The selected examples of another source. Positions count only selected examples."""

    def __init__(self, inner: Examples, choice: Choice) -> None:
        self.inner = inner
        self.choice = choice
        self.schema = schema = inner.schema
        column = choice.column
        wanted = column is not None and not schema.has_ids_of(column) and column not in schema.keep
        extra = [column] if column is not None and wanted else []
        self._read = inner.with_schema(replace(schema, keep=(*schema.keep, *extra))) if extra else inner
        self.seekable = inner.seekable
        self._marks = ReadMarks(0)

    @property
    def bad_lines(self) -> BadLines | None:
        return getattr(self.inner, "bad_lines", None)

    def count(self) -> int | None:
        return None

    def estimate(self) -> int:
        return int(self.choice.share * self.inner.estimate())

    def blocks(self, first: int) -> Iterator[Batch]:
        position, inner_position = self._marks.before(first)
        for block in self._read.blocks(inner_position):
            chosen = np.flatnonzero(self.choice.select(block, self.schema))
            batch = (block if len(chosen) == len(block) else block.take(chosen)).moved(position)
            if self._read is not self.inner:
                kept = batch.kept.select(list(self.schema.keep)) if self.schema.keep and batch.kept else None
                batch = replace(batch, kept=kept)
            position += len(batch)
            self._marks.add(position, block.first + len(block))
            if position > first and len(batch):
                skip = max(first - batch.first, 0)
                yield batch.slice(skip, len(batch)) if skip else batch

    def locate(self, first: int, count: int) -> str:
        """From the first to the last of these examples (of the first block); others may lie between them."""
        position, inner_position = self._marks.before(first)
        for block in self._read.blocks(inner_position):
            chosen = np.flatnonzero(self.choice.select(block, self.schema))
            if first < position + len(chosen):
                these = block.first + chosen[first - position : first - position + count]
                return locate(self.inner, int(these[0]), int(these[-1] - these[0]) + 1)
            position += len(chosen)
        return in_words(first, count)

    def with_schema(self, schema: Schema) -> FilteredExamples:
        return FilteredExamples(self.inner.with_schema(schema), self.choice)

    def time_range(self) -> tuple[int, int] | None:
        span = self.inner.time_range()
        if span is None:
            return None
        low, high = self.choice.bounds
        first = span[0] if low is None else max(span[0], low)
        last = span[1] if high is None else min(span[1], high)
        # The range comes from the ends of the files. In an unordered log, a part may lie outside it.
        return (first, max(first, last)) if high is None else (min(first, last), last)

    def describe(self) -> tuple[str, str]:
        what, remark = self.inner.describe()
        return f"{self.choice.words} of {what}", remark
