"""What a piece of text is cut into, whatever its format: spans of values, line numbers, and lines that are bad.

A layout (`delimited.py`, `json_lines.py`) describes a format and makes cutters; `text.py` reads the
files, feeds a cutter and knows where in the files it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gearshift.data.columns import Bytes

PADDING = 64  # bytes that a cutter may read past the end of the text


@dataclass(frozen=True)
class BadText:
    """A line that is no record; counted from 0 in the file."""

    line: int
    reason: str
    advice: str


@dataclass(frozen=True)
class TextRecords:
    """The records of a piece of text."""

    spans: NDArray[np.uint32]  # [records, wanted, 2]: start and size
    lines: NDArray[np.uint32]  # [records]: lines of the file before each
    consumed: int  # bytes behind which the next piece starts
    passed: int  # lines in these bytes
    full: bool  # there was no room for more records
    bad: Sequence[BadText] = ()
    long: Mapping[int, int] = field(default_factory=dict)  # record: lines, of those that span several
    nested: Mapping[str, str] = field(default_factory=dict)  # column: "lists", "structs"
    headers: Sequence[int] = ()  # records that have the letters of the header

    def without(self, records: Sequence[int]) -> TextRecords:
        """The same without some of its records."""
        gone = np.asarray(records)
        long = {i - int((gone < i).sum()): lines for i, lines in self.long.items() if i not in records}
        kept = np.delete(self.spans, gone, axis=0), np.delete(self.lines, gone)
        return replace(self, spans=kept[0], lines=kept[1], long=long, headers=())


class Cutter(Protocol):
    def cut(self, text: Bytes, size: int, last: bool, room: int, line: int) -> TextRecords:
        """At most `room` records of the first `size` bytes; `line` lines of the file lie before them.

        With `last` the final record needs no newline; otherwise an unfinished one is left for the next piece.
        """


class RecordLayout(Protocol):
    """How a text file is written."""

    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def header(self) -> bool: ...
    @property
    def null(self) -> tuple[str, ...]: ...
    @property
    def decimal(self) -> str: ...
    @property
    def thousands(self) -> str: ...
    @property
    def is_json(self) -> bool:
        """Whether lists among the values are JSON, whatever the separator."""

    @property
    def doubts_quotes(self) -> bool:
        """Whether values of many lines are a sign of stray quotes."""

    def cutter(self, wanted: tuple[str, ...]) -> Cutter: ...
