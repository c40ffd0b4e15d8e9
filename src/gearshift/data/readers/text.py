"""Text files as raw blocks: any CSV or TSV, Criteo, Avazu, libfm and JSON lines, plain or compressed.

Reads a few MiB at a time and splits them into records in C++, so memory does not grow with the file. A `TextMark` is
a position between two records from which reading can restart: plain files seek to it, compressed files are
decompressed up to it. Values are not converted here.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data.columns import Bytes, RawColumn, TextColumn
from gearshift.data.encode import RawBlock
from gearshift.data.readers.bad_lines import ALLOW_SOME, BadLines, SourcePlace
from gearshift.data.readers.cut import PADDING, RecordLayout, TextRecords
from gearshift.data.readers.delimited import TextLayout
from gearshift.data.readers.files import ByteStream, DataFile, hive_keys
from gearshift.errors import UserError, warn

BLOCK_EXAMPLES = 65_536
CHUNK_BYTES = 8 << 20
LONGEST_RECORD = 256 << 20
ESTIMATE_BYTES = 16 << 20
EDGE_BYTES = 256 << 10
LEAST_YIELD = 0.5  # of the number of examples estimated from the start of a file
BOM = b"\xef\xbb\xbf"


class TextMark(NamedTuple):
    """The next record to read: `offset` counts decompressed bytes, `line` counts the lines before it."""

    file: int
    offset: int
    line: int


START = TextMark(0, 0, 0)


class TextSource:
    """Raw blocks of a list of text files."""

    def __init__(self, files: Sequence[DataFile], layout: RecordLayout) -> None:
        self.files = tuple(files)
        self.layout = layout
        self.remarks: tuple[str, ...] = self._doubts
        self.checked_utf8: set[int] = set()  # numbers of the files that need no further check
        folders = [name for name in hive_keys(self.files[0].path) if name not in layout.columns]
        self.columns = (*layout.columns, *folders)

    @property
    def marks(self) -> tuple[str, str] | None:
        """(decimal mark, thousands separator), or None if the format fixes them."""
        if not isinstance(self.layout, TextLayout) or self.layout.marks_stated is None:
            return None
        return self.layout.decimal, self.layout.thousands

    def with_marks(self, decimal: str, thousands: str) -> TextSource:
        """The same files, read with the marks of other data wherever their own marks are a guess."""
        if self.marks in (None, (decimal, thousands)) and not self._doubts:
            return self
        assert isinstance(self.layout, TextLayout)
        other = TextSource(self.files, self.layout.with_marks(decimal, thousands))
        other.checked_utf8 = self.checked_utf8
        other.remarks = tuple(r for r in self.remarks if r not in self._doubts or r in other._doubts)
        return other

    @property
    def _doubts(self) -> tuple[str, ...]:
        return self.layout.marks_doubts if isinstance(self.layout, TextLayout) else ()

    @property
    def seekable(self) -> bool:
        return not any(file.is_stream for file in self.files)

    def count(self) -> int | None:
        return None

    def estimate(self) -> int:
        """Extrapolated from lines per (compressed) byte and examples per line at the start of the first file."""
        lines, size = self.files[0].sample_lines(ESTIMATE_BYTES)
        if self.layout.header:
            lines -= 1
        examples = lines * self.examples_per_line(0)
        return max(int(examples * sum(f.size for f in self.files) / max(size, 1)), 0)

    def examples_per_line(self, number: int) -> float:
        """Measured at the start of the file; below 1 if quoted values contain newlines."""
        start = _FilePass(self, self.layout.columns[:1], _lenient(), TextMark(number, 0, 0))
        block = start.edge_block(*self.files[number].head(EDGE_BYTES))
        if block.size < 2:
            return 1.0
        return (block.size - 1) / (block.place(block.size - 1).number - block.place(0).number)

    def blocks(
        self, wanted: Sequence[str], bad_lines: BadLines, start: TextMark = START
    ) -> Iterator[tuple[RawBlock, TextMark | None]]:
        """Blocks of up to 64 Ki examples. A mark allows reading to restart after its block."""
        for number in range(start.file, len(self.files)):
            at = start if number == start.file else TextMark(number, 0, 0)
            yield from _FilePass(self, tuple(wanted), bad_lines, at).run()

    def start(self, columns: tuple[str, ...], number: int) -> RawBlock:
        """The first examples of a file."""
        whole = _FilePass(self, columns, _lenient(), TextMark(number, 0, 0))
        return whole.edge_block(*self.files[number].head(EDGE_BYTES))

    def starts(self, column: str) -> Iterator[RawBlock]:
        for number in range(len(self.files)):
            yield self.start((column,), number)

    def tails(self, column: str, numbers: Sequence[int]) -> Iterator[RawBlock]:
        for number in numbers:
            rest = _FilePass(self, (column,), _lenient(), TextMark(number, 1, 0))
            yield rest.edge_block(self.files[number].tail(EDGE_BYTES), True)


def _lenient() -> BadLines:
    return BadLines(allowed=sys.maxsize)


class _FilePass:
    """One pass over one file, starting at a mark."""

    def __init__(
        self, source: TextSource, wanted: tuple[str, ...], bad_lines: BadLines, at: TextMark
    ) -> None:
        self._source = source
        self._file = source.files[at.file]
        self._layout = source.layout
        self._wanted = tuple(name for name in wanted if name in source.layout.columns)
        self._folders = {k: v for k, v in hive_keys(self._file.path).items() if k in wanted}
        self._bad_lines = bad_lines
        self._at = at
        self._expected_records = 1024
        self._cutter = source.layout.cutter(self._wanted)
        self._starts_at_0 = at.offset == 0
        self._yield = _Yield()

    def run(self) -> Iterator[tuple[RawBlock, TextMark | None]]:
        with ByteStream(self._file, self._at.offset) as stream:
            carry: Bytes = np.empty(0, np.uint8)
            capacity = CHUNK_BYTES
            while True:
                chunk, size, last = self._fill(stream, carry, capacity)
                self._check_encoding(chunk, size, last)
                consumed = yield from self._chunk_blocks(chunk, size, last)
                if stream.error is not None:
                    raise UserError(stream.error.sentence(self._examples_before(), self._source.files))
                if last:
                    break
                carry = chunk[consumed:size]
                capacity = CHUNK_BYTES if len(carry) < CHUNK_BYTES // 2 else self._longer(2 * capacity)
        if self._starts_at_0:
            self._source.checked_utf8.add(self._at.file)
            self._check_yield()

    def edge_block(self, data: bytes, last: bool) -> RawBlock:
        """The complete records in a piece of the file."""
        chunk = np.zeros(len(data) + PADDING, np.uint8)
        chunk[: len(data)] = np.frombuffer(data, np.uint8)
        self._expected_records = BLOCK_EXAMPLES
        for block, _ in self._chunk_blocks(chunk, len(data), last):
            return block
        raise AssertionError("a chunk has at least one block")

    def _fill(self, stream: ByteStream, carry: Bytes, capacity: int) -> tuple[Bytes, int, bool]:
        """(buffer, bytes in it, whether the file is at its end). The buffer is new, because blocks keep references."""
        chunk = np.empty(capacity + PADDING, np.uint8)
        chunk[: len(carry)] = carry
        got = stream.read_into(chunk[len(carry) : capacity].data)
        at_end = got < capacity - len(carry) and stream.error is None
        return chunk, len(carry) + got, at_end

    def _longer(self, capacity: int) -> int:
        if capacity > LONGEST_RECORD:
            raise UserError(
                f"{self._file.path} line {self._at.line + 1:,}: the record is longer than "
                f"{LONGEST_RECORD >> 20} MB; is this a text file with one example per line?"
            )
        return capacity

    def _examples_before(self) -> int:
        return self._at.line - (1 if self._layout.header and self._at.line else 0)

    def _check_encoding(self, chunk: Bytes, size: int, last: bool) -> None:
        """Warn about the first byte that is not UTF-8. Ids are hashes of the bytes, so they do not change."""
        checked = self._source.checked_utf8
        if self._at.file in checked or (at := _core.find_not_utf8(chunk, size, last)) < 0:
            return
        checked.add(self._at.file)
        line = self._at.line + int(np.count_nonzero(chunk[:at] == ord("\n"))) + 1
        warn(
            f"{self._file.path} line {line:,}: byte 0x{chunk[at]:02X} is not UTF-8; such values are identified by "
            "their bytes and displayed with \ufffd. If the file is in another encoding, name it: "
            "data.csv={encoding: latin-1}"
        )

    def _chunk_blocks(
        self, chunk: Bytes, size: int, last: bool
    ) -> Generator[tuple[RawBlock, TextMark | None], None, int]:
        """Yield the complete records of a chunk; return how many of its bytes they used."""
        begin = len(BOM) if self._at.offset == 0 and chunk[: len(BOM)].tobytes() == BOM else 0
        header = self._layout.header and self._at.offset == 0
        text, length, consumed = chunk[begin:], size - begin, 0
        is_libfm = isinstance(self._layout, TextLayout) and self._layout.libfm
        if is_libfm:
            text, length, consumed = self._strip_libfm(text, length, last)
        at, line = 0, self._at.line
        pending: RawBlock | None = None
        while True:
            records = self._cutter.cut(text[at:], length - at, last, self._expected_records, line)
            full = records.full
            if records.headers:
                records = self._without_headers(records, text[at:], header, self._at.offset == 0 and at == 0)
            self._note(records, header)
            if full:
                self._expected_records = BLOCK_EXAMPLES
            if pending is not None:
                yield pending, None
            pending = self._block(text[at:], records, header)
            header = header and len(records.lines) == 0
            at, line = at + records.consumed, line + records.passed
            if not full:
                break
        if not is_libfm:
            consumed = at
        self._at = TextMark(self._at.file, self._at.offset + begin + consumed, line)
        yield pending, self._at
        return begin + consumed

    def _without_headers(
        self, records: TextRecords, text: Bytes, header: bool, is_start: bool
    ) -> TextRecords:
        """Remove header lines among the examples, which `cat a.csv b.csv` leaves there. They count as bad lines.

        A header with another column order is an error. `is_start`: the first row is the first one of the file; if the
        layout has no header, a header there is unexpected.
        """
        repeated = []
        for row in records.headers:
            names = [_text(text, span) for span in records.spans[row]]
            is_first = header and row == 0
            if is_first or len(set(names)) < len(names) or not set(names) <= set(self._layout.columns):
                continue
            place = SourcePlace(self._file.path, int(records.lines[row]) + 1)
            moved = [pair for pair in zip(names, self._wanted, strict=True) if pair[0] != pair[1]]
            if is_start and row == 0:
                self._refuse_first(place, moved)
            elif moved:
                raise UserError(
                    f"{place}: a second header, with column `{moved[0][0]}` where `{moved[0][1]}` is in the first "
                    "one: the lines below it would be read under the wrong names. Split the file at this line, "
                    "and give both parts the same column order."
                )
            else:
                self._bad_lines.refuse(place, "the header is repeated here", ALLOW_SOME)
            repeated.append(row)
        return records.without(repeated) if repeated else records

    def _refuse_first(self, place: SourcePlace, moved: Sequence[tuple[str, str]]) -> None:
        """A header although data.csv.columns names the columns; `moved` has the pairs (header name, given name)."""
        if moved:
            raise UserError(
                f"{place}: this line is a header, with column `{moved[0][0]}` where data.csv.columns has "
                f"`{moved[0][1]}`. Set data.csv={{header: true}}, and name the columns in the order of the file."
            )
        self._bad_lines.refuse(place, "this line is a header", "Set data.csv={header: true}")

    def _note(self, records: TextRecords, header: bool) -> None:
        """Report bad lines. A bad header cannot be skipped."""
        for bad in records.bad:
            if header and not (len(records.lines) and records.lines[0] < bad.line):
                raise UserError(f"{self._file.path} line {bad.line + 1:,}, the header: {bad.reason}.")
            self._bad_lines.refuse(SourcePlace(self._file.path, bad.line + 1), bad.reason, bad.advice)
        self._yield.add(records, header)

    def _block(self, text: Bytes, records: TextRecords, header: bool) -> RawBlock:
        file, first = self._file.path, 1 if header and len(records.lines) else 0
        spans, lines, long = records.spans[first:], records.lines[first:], records.long
        missing = [value for value in self._layout.null if value]
        if missing:
            for slot in range(len(self._wanted)):
                _core.blank_values(text, spans[:, slot], missing)
        columns: dict[str, RawColumn] = {
            name: TextColumn(
                text,
                spans[:, slot],
                self._layout.decimal,
                self._layout.thousands,
                self._layout.is_json,
                records.nested.get(name),
            )
            for slot, name in enumerate(self._wanted)
        }
        columns |= {k: pa.repeat(pa.scalar(v), len(spans)) for k, v in self._folders.items()}

        def place(i: int) -> SourcePlace:
            return SourcePlace(file, int(lines[i]) + 1, lines=long.get(i + first, 1))

        return RawBlock(len(spans), columns, place)

    def _strip_libfm(self, text: Bytes, size: int, last: bool) -> tuple[Bytes, int, int]:
        out = np.empty(2 * size + 2 + PADDING, np.uint8)
        written, consumed, bad = _core.strip_libfm(text, size, last, out)
        if bad >= 0:
            line = self._at.line + int(np.count_nonzero(text[:bad] == ord("\n"))) + 1
            token = text[bad : bad + 80].tobytes().split()[0].decode("utf-8", "replace")
            raise UserError(
                f"{self._file.path} line {line:,}: feature `{token}` has a value other than 1; "
                "libfm text is read as categories (index:1). Write numbers as CSV or Parquet columns."
            )
        return out, written, consumed

    def _check_yield(self) -> None:
        """Refuse a file with far fewer examples than its start suggests: stray quotes have swallowed lines."""
        counted = self._yield
        if not self._layout.doubts_quotes or counted.examples >= LEAST_YIELD * counted.lines:
            return
        promised = self._source.examples_per_line(self._at.file) * counted.lines
        if counted.examples < LEAST_YIELD * promised:
            raise UserError(
                f"{self._file.path}: {counted.lines:,} lines contain {counted.examples:,} examples, but the start of "
                f"the file suggests {promised:,.0f}; quoted values span the other lines, from line {counted.first:,} "
                "on. Look for stray quotes there, or read without quoting: data.csv={quote: none}. If the quotes are "
                "correct, set how many lines a value may span: data.csv={quoted_lines: 8}"
            )


def _text(data: Bytes, span: NDArray[np.uint32]) -> str:
    start, size = (int(v) for v in span)
    return data[start : start + size].tobytes().decode("utf-8", "replace").strip()


class _Yield:
    """Counts the lines of a file and the examples in them. Bad lines are reported separately and do not count."""

    def __init__(self) -> None:
        self.lines = 0
        self.examples = 0
        self.first = 0  # line number of the first example that spans several lines, from 1

    def add(self, records: TextRecords, header: bool) -> None:
        examples = len(records.lines) - (1 if header and len(records.lines) else 0)
        self.examples += examples
        self.lines += examples + sum(records.long.values()) - len(records.long)
        if records.long and not self.first:
            self.first = int(records.lines[min(records.long)]) + 1
