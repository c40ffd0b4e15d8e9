"""Delimited text as raw blocks: any CSV or TSV, Criteo, Avazu and libfm, plain or compressed.

Reads a few MiB at a time and cuts them into records in C++, so a file of any size needs the same memory. A
`Mark` is a place between two records at which reading can start again: plain files seek there, compressed
ones are decompressed up to it. Values are not converted here.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gearshift import _core
from gearshift.data.bad_lines import BadLines, Place
from gearshift.data.columns import Bytes, RawColumn, TextColumn
from gearshift.data.encode import ALLOW_SOME, RawBlock
from gearshift.data.files import ByteStream, DataFile, hive_keys
from gearshift.errors import UserError

BLOCK_EXAMPLES = 65_536
CHUNK_BYTES = 8 << 20
PADDING = 64  # what the splitter may read past the end
LONGEST_RECORD = 256 << 20
ESTIMATE_BYTES = 16 << 20
EDGE_BYTES = 256 << 10
BOM = b"\xef\xbb\xbf"
LIBFM_ADVICE = 'Read such lines as one bag: features: [{name: features, type: bag, separator: " "}]'
QUOTE_ADVICE = "Close it, or read without quoting: data.csv={quote: none}"


@dataclass(frozen=True)
class TextLayout:
    """How the text is cut; `columns` are the names of all columns, in file order."""

    columns: tuple[str, ...]
    delimiter: str = ","
    quote: str = '"'  # "" for none
    header: bool = True
    null: tuple[str, ...] = ("",)
    trim: bool = False  # spaces around values do not count
    decimal: str = "."
    libfm: bool = False
    rest_in_last: bool = False  # the last column takes the rest of the line
    counted_by: str = "the header"  # what says how many columns there are, for the error message


class Mark(NamedTuple):
    """The next record to read: `offset` counts decompressed bytes, `line` the lines before it."""

    file: int
    offset: int
    line: int


START = Mark(0, 0, 0)


class TextSource:
    """Raw blocks of a list of text files."""

    def __init__(self, files: Sequence[DataFile], layout: TextLayout) -> None:
        self.files = tuple(files)
        self.layout = layout
        folders = [name for name in hive_keys(self.files[0].path) if name not in layout.columns]
        self.columns = (*layout.columns, *folders)

    @property
    def seekable(self) -> bool:
        return all(file.compression is None for file in self.files)

    def count(self) -> int | None:
        return None

    def estimate(self) -> int:
        """From the lines per (compressed) byte, and the examples per line, at the start of the first file."""
        lines, size = self.files[0].sample_lines(ESTIMATE_BYTES)
        if self.layout.header:
            lines -= 1
        examples = lines * self._examples_per_line()
        return max(int(examples * sum(f.size for f in self.files) / max(size, 1)), 0)

    def _examples_per_line(self) -> float:
        """Below 1 where quoted values hold line ends."""
        if not self.layout.quote:
            return 1.0
        start = _FilePass(self, self.layout.columns[:1], BadLines(allowed=sys.maxsize), START)
        block = start.edge_block(*self.files[0].head(EDGE_BYTES))
        if block.size < 2:
            return 1.0
        return (block.size - 1) / (block.place(block.size - 1).number - block.place(0).number)

    def blocks(
        self, wanted: Sequence[str], bad_lines: BadLines, start: Mark = START
    ) -> Iterator[tuple[RawBlock, Mark | None]]:
        """Blocks of up to 64 Ki examples; with a mark where reading can start again behind the block."""
        for number in range(start.file, len(self.files)):
            at = start if number == start.file else Mark(number, 0, 0)
            yield from _FilePass(self, tuple(wanted), bad_lines, at).run()

    def ends(self, column: str) -> Iterator[RawBlock]:
        """Of compressed files the start, and only of the last one also the end: it has to be read through."""
        lenient = BadLines(allowed=sys.maxsize)
        for number, file in enumerate(self.files):
            whole = _FilePass(self, (column,), lenient, Mark(number, 0, 0))
            yield whole.edge_block(*file.head(EDGE_BYTES))
            if file.size > EDGE_BYTES and (file.compression is None or number == len(self.files) - 1):
                rest = _FilePass(self, (column,), lenient, Mark(number, 1, 0))
                yield rest.edge_block(file.tail(EDGE_BYTES), True)


class _FilePass:
    """One pass over one file, from a mark on."""

    def __init__(self, source: TextSource, wanted: tuple[str, ...], bad_lines: BadLines, at: Mark) -> None:
        self._file = source.files[at.file]
        self._neighbours = source.files
        self._layout = source.layout
        self._wanted = tuple(name for name in wanted if name in source.layout.columns)
        self._folders = {k: v for k, v in hive_keys(self._file.path).items() if k in wanted}
        self._bad_lines = bad_lines
        self._at = at
        self._expected_records = 1024
        self._slots = np.full(len(self._layout.columns), -1, np.int32)
        for slot, name in enumerate(self._wanted):
            self._slots[self._layout.columns.index(name)] = slot

    def run(self) -> Iterator[tuple[RawBlock, Mark | None]]:
        with ByteStream(self._file, self._at.offset) as stream:
            carry: Bytes = np.empty(0, np.uint8)
            capacity = CHUNK_BYTES
            while True:
                chunk, size, last = self._fill(stream, carry, capacity)
                consumed = yield from self._chunk_blocks(chunk, size, last)
                if stream.error is not None:
                    raise UserError(stream.error.sentence(self._examples_before(), self._neighbours))
                if last:
                    return
                carry = chunk[consumed:size]
                capacity = CHUNK_BYTES if len(carry) < CHUNK_BYTES // 2 else self._longer(2 * capacity)

    def edge_block(self, data: bytes, last: bool) -> RawBlock:
        """The whole records of a piece of the file."""
        chunk = np.zeros(len(data) + PADDING, np.uint8)
        chunk[: len(data)] = np.frombuffer(data, np.uint8)
        self._expected_records = BLOCK_EXAMPLES
        for block, _ in self._chunk_blocks(chunk, len(data), last):
            return block
        raise AssertionError("a chunk has at least one block")

    def _fill(self, stream: ByteStream, carry: Bytes, capacity: int) -> tuple[Bytes, int, bool]:
        """(buffer, bytes in it, is the file at its end). A fresh buffer: blocks keep theirs alive."""
        chunk = np.empty(capacity + PADDING, np.uint8)
        chunk[: len(carry)] = carry
        got = stream.read_into(chunk[len(carry) : capacity].data)
        at_end = got < capacity - len(carry) and stream.error is None
        return chunk, len(carry) + got, at_end

    def _longer(self, capacity: int) -> int:
        if capacity > LONGEST_RECORD:
            raise UserError(
                f"{self._file.path} line {self._at.line + 1:,}: the record is longer than "
                f"{LONGEST_RECORD >> 20} MB; is there a quote that never closes?"
            )
        return capacity

    def _examples_before(self) -> int:
        return self._at.line - (1 if self._layout.header and self._at.line else 0)

    def _chunk_blocks(
        self, chunk: Bytes, size: int, last: bool
    ) -> Generator[tuple[RawBlock, Mark | None], None, int]:
        """The whole records of a chunk; returns how many of its bytes they took."""
        begin = len(BOM) if self._at.offset == 0 and chunk[: len(BOM)].tobytes() == BOM else 0
        header = self._layout.header and self._at.offset == 0
        text, length, consumed = chunk[begin:], size - begin, 0
        if self._layout.libfm:
            text, length, consumed = self._strip_libfm(text, length, last)
        at, line = 0, self._at.line
        pending: RawBlock | None = None
        while True:
            spans, lines, done = self._split(text[at:], length - at, last, line, header)
            if pending is not None:
                yield pending, None
            pending = self._block(text[at:], spans, lines)
            if len(spans) or done.bad:
                header = False
            at, line = at + done.consumed, line + done.lines
            if not done.full:
                break
        if not self._layout.libfm:
            consumed = at
        self._at = Mark(self._at.file, self._at.offset + begin + consumed, line)
        yield pending, self._at
        return begin + consumed

    def _split(self, text: Bytes, size: int, last: bool, line: int, header: bool) -> tuple[Any, Any, _Split]:
        layout = self._layout
        room = self._expected_records
        spans = np.empty((room, len(self._wanted), 2), np.uint32)
        lines = np.empty(room, np.uint32)
        records, consumed, passed, bad = _core.split_lines(
            text, size, layout.delimiter, layout.quote, self._slots, len(self._wanted),
            layout.rest_in_last, layout.trim, last, spans, lines,
        )  # fmt: skip
        for bad_line, columns in bad:
            self._refuse(line + bad_line + 1, columns)
        first = 1 if header and records else 0
        if records == room:
            self._expected_records = BLOCK_EXAMPLES
        return (
            spans[first:records],
            lines[first:records] + line,
            _Split(consumed, passed, records == room, bool(bad)),
        )

    def _block(self, text: Bytes, spans: Any, lines: Any) -> RawBlock:
        file = self._file.path
        missing = [value for value in self._layout.null if value]
        if missing:
            for slot in range(len(self._wanted)):
                _core.blank_values(text, spans[:, slot], missing)
        columns: dict[str, RawColumn] = {
            name: TextColumn(text, spans[:, slot], self._layout.decimal)
            for slot, name in enumerate(self._wanted)
        }
        columns |= {k: pa.repeat(pa.scalar(v), len(spans)) for k, v in self._folders.items()}
        return RawBlock(len(spans), columns, lambda i: Place(file, int(lines[i]) + 1))

    def _strip_libfm(self, text: Bytes, size: int, last: bool) -> tuple[Bytes, int, int]:
        out = np.empty(2 * size + 2 + PADDING, np.uint8)
        written, consumed, bad = _core.strip_libfm(text, size, last, out)
        if bad >= 0:
            line = self._at.line + int(np.count_nonzero(text[:bad] == ord("\n"))) + 1
            token = text[bad : bad + 80].tobytes().split()[0].decode("utf-8", "replace")
            raise UserError(
                f"{self._file.path} line {line:,}: feature `{token}` has another value than 1; "
                "libfm text is read as categories (index:1). Write numbers as CSV or Parquet columns."
            )
        return out, written, consumed

    def _refuse(self, line: int, columns: int) -> None:
        place = Place(self._file.path, line)
        if columns < 0:
            self._bad_lines.refuse(place, "the quote that opens here never closes", QUOTE_ADVICE)
            return
        whose = self._layout.counted_by
        reason = f"{columns:,} column{'s' * (columns != 1)} where {whose} has {len(self._slots):,}"
        self._bad_lines.refuse(place, reason, LIBFM_ADVICE if self._layout.libfm else ALLOW_SOME)


class _Split(NamedTuple):
    consumed: int
    lines: int
    full: bool  # there was no room for more records
    bad: bool
