"""The result of splitting a piece of text of any format: spans of values, line numbers and bad lines.

A layout (`delimited.py`, `json_lines.py`) describes a format and creates cutters. `text.py` reads the files, passes
their text to a cutter and tracks the position in the files.
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
    """A line that is not a record; its number counts from 0 in the file."""

    line: int
    reason: str
    advice: str


@dataclass(frozen=True)
class TextRecords:
    """The records of a piece of text."""

    spans: NDArray[np.uint32]  # [records, wanted, 2]: start and size
    lines: NDArray[np.uint32]  # [records]: number of lines in the file before each record
    consumed: int  # bytes used; the next piece starts after them
    passed: int  # number of lines in these bytes
    full: bool  # no room was left for more records
    bad: Sequence[BadText] = ()
    long: Mapping[int, int] = field(default_factory=dict)  # record: lines, for records that span several
    nested: Mapping[str, str] = field(default_factory=dict)  # column: "lists", "structs"
    headers: Sequence[int] = ()  # records with the same text as the header

    def without(self, records: Sequence[int]) -> TextRecords:
        """A copy without some of the records."""
        removed = np.asarray(records)
        long = {i - int((removed < i).sum()): lines for i, lines in self.long.items() if i not in records}
        kept = np.delete(self.spans, removed, axis=0), np.delete(self.lines, removed)
        return replace(self, spans=kept[0], lines=kept[1], long=long, headers=())


class Cutter(Protocol):
    def cut(self, text: Bytes, size: int, last: bool, room: int, line: int) -> TextRecords:
        """Split the first `size` bytes into at most `room` records; `line` is the number of lines before them.

        With `last`, the final record needs no newline. Otherwise an unfinished record is left for the next piece.
        """


class RecordLayout(Protocol):
    """The layout of a text file."""

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
        """Whether lists in the values are JSON, regardless of the separator."""

    @property
    def doubts_quotes(self) -> bool:
        """Whether quoted values that span lines are checked for stray quotes."""

    def cutter(self, wanted: tuple[str, ...]) -> Cutter: ...
